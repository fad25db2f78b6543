"""Greedy generation with Hugging Face's Llama and its static cache of keys and values.

Prefill and decode are two functions. Decode reads no values, so it can be captured. Prefill cannot: outside
a compiler, `masking_utils._ignore_causal_mask_sdpa` asks whether the cache is empty (`q_offset == 0`) and
whether there is padding (`fast_all(padding_mask)`), to leave the mask away. With a static cache and one
token `create_causal_mask` does not ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_pjrt
from text_sizes import Sizes, padded
from torch_pjrt.observe.counters import counters

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def model_of(sizes: Sizes) -> Any:
    """Hugging Face's model, the same weights in each process."""
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=256,
        rms_norm_eps=sizes.epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.base},
    )
    return LlamaForCausalLM(config).eval()


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself."""
    return function


class CachedModel:
    """Prefill and decode, of a model and a cache.

    No attribute changes from token to token: `capture` looks at those of a method's object in each call.
    """

    def __init__(self, model: Any, room: int) -> None:
        from transformers import StaticCache  # pyright: ignore[reportMissingImports]

        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=room)

    def prefill(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The token after `ids`, (1, bucket), those at the places where `mask`, (1, room), is 1."""
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, : ids.shape[1]]
        return self._likeliest(ids, mask, positions)

    def decode(
        self, token: torch.Tensor, mask: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The token after `token`, (1, 1), which is at `position`, (1, 1); and the next position."""
        return self._likeliest(token, mask, position), position + 1

    def _likeliest(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        logits = self.model(
            ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache
        ).logits
        return logits[:, -1].argmax(-1, keepdim=True)


class TorchGenerator:
    """One generation after another; tokens stay on the device until they are read.

    prefill, decode   each of the two functions is wrapped by what is given for it: a compiler, `capture`.
    """

    def __init__(
        self,
        model: Any,
        device: str,
        room: int,
        *,
        prefill: Wrap = as_it_is,
        decode: Wrap = as_it_is,
    ) -> None:
        self.device, self.room = device, room
        functions = CachedModel(model.to(device), room)
        self.cache = functions.cache
        self.prefill, self.decode = prefill(functions.prefill), decode(functions.decode)
        self.state: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @torch.no_grad()
    def first(self, prompt: torch.Tensor) -> torch.Tensor:
        """The token after a prompt, (1, 1), maybe still being computed."""
        ids, pad = padded(prompt)
        mask = torch.ones(1, self.room, dtype=torch.long)
        mask[:, :pad] = 0
        mask, position = mask.to(self.device), torch.tensor([[prompt.shape[1]]]).to(self.device)
        self.cache.reset()
        token = self.prefill(ids.to(self.device), mask)
        self.state = token, mask, position
        return token

    @torch.no_grad()
    def next(self) -> torch.Tensor:
        """The token after the last one, (1, 1), maybe still being computed."""
        assert self.state is not None
        token, mask, position = self.state
        token, position = self.decode(token, mask, position)
        self.state = token, mask, position
        if self.device == "pjrt":
            torch_pjrt.sync()
        return token

    def read(self, tokens: list[torch.Tensor]) -> list[int]:
        """The tokens on the host, when they are computed."""
        return torch.cat(tokens, 1)[0].tolist()

    def programs_run(self) -> int:
        """Programs launched so far on `pjrt`."""
        return counters.programs_run

    def programs_compiled(self) -> int:
        """Programs of `pjrt` compiled so far."""
        return counters.programs_compiled
