"""Attention is cuDNN's fused kernel, forward and backward, where that takes the call."""

from __future__ import annotations

import os
from importlib.util import find_spec

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt
from torch_pjrt.plugin import rules
from torch_pjrt_gpu.attention import objection
from torch_pjrt_gpu.attention import scaled_dot_product_attention as by_us

HAS_PLUGIN = find_spec("jax_plugins") is not None and any(
    find_spec(f"jax_plugins.xla_cuda{n}") for n in (12, 13)
)
needs_plugin = pytest.mark.skipif(
    not HAS_PLUGIN or os.environ.get("JAX_PLATFORMS") != "cpu",
    reason="JAX's CUDA plugin is not installed (`hatch run ahead:run` does), or JAX_PLATFORMS is not `cpu`",
)


def like(*shape: int, dtype: str = "bfloat16") -> jax.Array:
    return jax.numpy.zeros(shape, dtype)


HEADS = like(2, 4, 32, 64)


@pytest.mark.parametrize(
    ("query", "key", "mask", "dropout", "words"),
    [
        (HEADS, HEADS, None, 0.0, None),
        (HEADS, like(2, 2, 48, 64), None, 0.0, None),
        (like(2, 4, 32, 64, dtype="float16"), like(2, 4, 32, 64, dtype="float16"), None, 0.0, None),
        (like(4, 32, 64), like(4, 32, 64), None, 0.0, "3 dims"),
        (like(2, 4, 32, 64, dtype="float32"),) * 2 + (None, 0.0, "float32"),
        (HEADS, HEADS, like(32, 32), 0.0, "a mask"),
        (HEADS, HEADS, None, 0.1, "dropout"),
        (like(2, 4, 32, 20), like(2, 4, 32, 20), None, 0.0, "width 20"),
        (like(2, 4, 32, 256), like(2, 4, 32, 256), None, 0.0, "width 256"),
    ],
)
def test_kernel_says_what_it_has_against_a_call(
    query: jax.Array, key: jax.Array, mask: jax.Array | None, dropout: float, words: str | None
) -> None:
    found = objection(rules.Attention(None, query, key, key, mask, dropout))

    assert (found is None) if words is None else (words in (found or ""))


def test_call_that_the_kernel_does_not_take_goes_to_the_rule_of_the_core() -> None:
    x = jax.random.normal(jax.random.key(0), (1, 2, 8, 16))
    call = rules.Attention(None, x, x, x, is_causal=True)

    with jax.enable_x64(True):
        ours, theirs = (rule(call) for rule in (by_us, rules.attention))

    np.testing.assert_array_equal(ours[0], theirs[0])


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).float().sum().backward()
    assert q.grad is not None and k.grad is not None
    return q.grad.float().sum() + k.grad.float().sum()


@needs_plugin
def test_program_for_a_card_calls_the_fused_kernel_forward_and_backward() -> None:
    q = torch.empty(2, 8, 256, 64, dtype=torch.bfloat16, device="meta")
    k = torch.empty(2, 4, 256, 64, dtype=torch.bfloat16, device="meta")

    in_halves, in_floats = lowered(attention, q, k), lowered(attention, q.float(), k.float())

    for kernel in ("@__cudnn$fmhaSoftmax(", "@__cudnn$fmhaSoftmaxBackward("):
        assert kernel in in_halves
        assert kernel not in in_floats
    # Those of the forward and of the backward's rule are the same call.
    calls = [line for line in in_halves.splitlines() if "@__cudnn$fmhaSoftmax(" in line]
    assert len({line.partition("{")[2] for line in calls}) == 1


def lowered(fn: object, *inputs: torch.Tensor) -> str:
    """The program that would be compiled: to compile the kernel takes cuDNN itself."""
    from torch_pjrt.aot import compile_for as module  # noqa: TID251

    texts: list[str] = []

    class Enough(Exception):
        pass

    def keep(there: object, lowered: object, target: str) -> None:
        texts.append(lowered.as_text())  # type: ignore[attr-defined]
        raise Enough

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Enough):
        patch.setattr(module, "_compiled", keep)
        torch_pjrt.compile_for("h100", fn, *inputs)  # pyright: ignore[reportArgumentType]
    return texts[0]
