"""`generate` with one program for each decoded token, and none compiled anew after the first calls.

Tokens, masks and positions grow with each token: they stay on the host, where Transformers chooses the next
token, too. The device has the model and a cache of a fixed size; prompts are filled up to a power of two,
behind their end. What was filled up is not seen by any token, and the cache forgets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torch_pjrt
from torch_pjrt_ecosystem.for_transformers import caches
from torch_pjrt_ecosystem.replacing import wrap

# What grows with each token, by the names that models have for it.
_GROWING = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "token_type_ids",
    "mm_token_type_ids",
    "inputs_embeds",
    "decoder_input_ids",
    "decoder_attention_mask",
    "decoder_position_ids",
)
# Of the cache in `model_kwargs`: Transformers 5.24 has renamed it.
_CACHE = ("cache", "past_key_values")
_PADDED = {"attention_mask", "position_ids", "token_type_ids"}
_WHOLE_PROMPT = ("output_attentions", "output_hidden_states")


def install(utils: Any) -> None:
    """`utils` is `transformers.generation.utils`."""
    mixin = utils.GenerationMixin
    wrap(mixin, "generate", _generate)
    wrap(mixin, "_prepare_text_encoder_decoder_kwargs_for_generation", _encode)
    wrap(mixin, "_prepare_cache_for_generation", _prepare_cache)
    wrap(mixin, "_prefill", _prefill)
    wrap(mixin, "_has_unfinished_sequences", _has_unfinished)


def _generate(
    original: Callable[..., Any], self: Any, inputs: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Results are where the inputs were. Assisted decoding, which moves tokens itself, is as it was."""
    if self.device.type != "pjrt" or _is_assisted(self, args, kwargs):
        return original(self, inputs, *args, **kwargs)
    names = {*_GROWING, self.main_input_name} if self.config.is_encoder_decoder else set(_GROWING)
    given = (inputs, *(kwargs.get(name) for name in names))
    there = next((x.device for x in given if isinstance(x, Tensor) and _is_ours(x)), None)
    kwargs |= {name: _on_host(kwargs[name]) for name in names & kwargs.keys()}
    made = original(self, _on_host(inputs), *args, **kwargs)
    torch_pjrt.sync()  # beam search has ordered a cache that no step takes: not in the next program
    return made if there is None else _moved(made, there)


def _is_assisted(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    config = args[0] if args else kwargs.get("generation_config")
    asked = ("prompt_lookup_num_tokens", "assistant_early_exit", "speculation_type", "use_mtp")
    return (
        len(args) > 5
        or kwargs.get("assistant_model") is not None
        or kwargs.get("custom_generate") is not None
        or any(
            kwargs.get(name) or getattr(config or model.generation_config, name, None)
            for name in asked
        )
    )


def _is_ours(x: Tensor) -> bool:
    return x.device.type == "pjrt"


def _on_host(x: Any) -> Any:
    return x.cpu() if isinstance(x, Tensor) and _is_ours(x) else x


def _moved(x: Any, device: torch.device) -> Any:
    """The tensors of what `generate` returns, on the device; the cache is there."""
    if isinstance(x, Tensor):
        return x.to(device)
    if type(x) is tuple:
        return tuple(_moved(part, device) for part in x)
    if isinstance(x, dict):
        for name, value in list(x.items()):
            if isinstance(value, Tensor | tuple):
                x[name] = _moved(value, device)
    return x


def _encode(
    original: Callable[..., dict[str, Any]],
    self: Any,
    inputs_tensor: Tensor,
    model_kwargs: dict[str, Any],
    model_input_name: str | None,
    generation_config: Any,
) -> dict[str, Any]:
    """The encoder runs on the device; a text is filled up behind its end, and its mask says so."""
    if self.device.type != "pjrt" or _is_ours(inputs_tensor):
        return original(self, inputs_tensor, model_kwargs, model_input_name, generation_config)
    given = dict(model_kwargs)
    if inputs_tensor.ndim == 2 and not inputs_tensor.is_floating_point():
        n = inputs_tensor.shape[1]
        size = caches.rounded_up(n, _longest(self) or 2**62)
        mask = given.get("attention_mask")
        mask = torch.ones_like(inputs_tensor) if mask is None else mask
        if mask.ndim == 2:
            inputs_tensor = _filled_up(inputs_tensor, size)
            given["attention_mask"] = torch.nn.functional.pad(mask, (0, size - n))
    there = {k: x.to(self.device) if isinstance(x, Tensor) else x for k, x in given.items()}
    made = original(self, inputs_tensor.to(self.device), there, model_input_name, generation_config)
    return {**given, "encoder_outputs": made["encoder_outputs"]}


def _longest(model: Any) -> int | None:
    """How many tokens the model may take, None where its configuration does not say."""
    return getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)


def _prepare_cache(
    original: Callable[..., None],
    self: Any,
    generation_config: Any,
    model_kwargs: dict[str, Any],
    generation_mode: Any,
    batch_size: int,
    max_cache_length: int,
) -> None:
    """A static cache where nobody has asked for another; its size is a power of two."""
    before = generation_config.cache_implementation
    if self.device.type != "pjrt" or not _may_be_static(
        self, generation_config, model_kwargs, generation_mode
    ):
        original(
            self, generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        return
    from transformers.cache_utils import EncoderDecoderCache, StaticLayer  # pyright: ignore[reportMissingImports]
    from transformers.cache_utils import StaticSlidingWindowLayer as SlidingLayer  # pyright: ignore[reportMissingImports]

    size = caches.rounded_up(max_cache_length, _longest(self) or 2**62)
    generation_config.cache_implementation = "static"
    try:
        original(self, generation_config, model_kwargs, generation_mode, batch_size, size)
    finally:
        generation_config.cache_implementation = before
    cache = _cache_of(model_kwargs)
    if cache is None:
        return
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    length = self._previous_max_cache_length
    if not caches.with_known_lengths(own, StaticLayer, SlidingLayer, length) and before is None:
        for name in _CACHE:
            model_kwargs.pop(name, None)
        original(
            self, generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )


def _cache_of(model_kwargs: dict[str, Any]) -> Any:
    """The cache that `generate` was given or has made; None where there is none."""
    return next((x for name in _CACHE if (x := model_kwargs.get(name)) is not None), None)


def _may_be_static(
    model: Any, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any
) -> bool:
    return (
        model._can_compile_fullgraph
        and generation_config.cache_implementation in (None, "static")
        and generation_config.use_cache is not False
        and generation_config.compile_config is None
        and not generation_config.is_assistant
        and getattr(generation_mode, "value", None) != "assisted_generation"
        and _cache_of(model_kwargs) is None
        and model._supports_default_dynamic_cache()
    )


def _prefill(
    original: Callable[..., Any],
    self: Any,
    input_ids: Tensor,
    generation_config: Any,
    model_kwargs: dict[str, Any],
    is_first_iteration: bool = True,
) -> Any:
    """With as many tokens as the next power of two; the logits are those behind the last true one."""
    if not (
        is_first_iteration and _may_be_filled_up(self, input_ids, generation_config, model_kwargs)
    ):
        return original(self, input_ids, generation_config, model_kwargs, is_first_iteration)
    cache, n = _cache_of(model_kwargs), input_ids.shape[1]
    size = caches.rounded_up(n, cache.get_max_length())
    last = torch.tensor([n - 1], device="cpu").to(self.device)
    given = dict(model_kwargs)
    for name in _PADDED & given.keys():
        if isinstance(given[name], Tensor):
            given[name] = _filled_up(given[name], size)
    if keeps := "logits_to_keep" in given:
        given["logits_to_keep"] = last
    made = original(self, _filled_up(input_ids, size), generation_config, given, True)
    if not keeps:
        made.logits = made.logits.index_select(1, last)
    caches.set_length(cache, n)
    return made


def _may_be_filled_up(
    model: Any, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any]
) -> bool:
    """Text alone, from the first token on, whose hidden states nobody wants."""
    cache = _cache_of(model_kwargs)
    is_told = generation_config.return_dict_in_generate and any(
        getattr(generation_config, name, False) for name in _WHOLE_PROMPT
    )
    others = {k for k, x in model_kwargs.items() if isinstance(x, Tensor)} - _PADDED
    return (
        model.device.type == "pjrt"
        and input_ids.ndim == 2
        and not _is_ours(input_ids)
        and not model.config.is_encoder_decoder
        and caches.has_known_lengths(cache)
        and cache.get_seq_length() == 0
        and generation_config.prefill_chunk_size is None
        and model_kwargs.get("logits_to_keep", 1) == 1
        and not is_told
        and not others
        and not model_kwargs.get("mm_encoder_outputs")
    )


def _filled_up(x: Tensor, size: int) -> Tensor:
    """The last element of each row again and again: a token, a position or a mark that the model can take."""
    return torch.cat([x, x[..., -1:].expand(*x.shape[:-1], size - x.shape[-1])], dim=-1)


def _has_unfinished(
    original: Callable[..., bool],
    self: Any,
    this_peer_finished: bool,
    synced_gpus: bool,
    device: Any,
) -> bool:
    """Processes of a run ask each other by the backend of the model's device."""
    return original(self, this_peer_finished, synced_gpus, self.device if synced_gpus else device)
