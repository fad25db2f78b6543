"""Attention is cuDNN's fused kernel, forward and backward, where that takes the call."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt
from torch_pjrt.plugin import rules
from torch_pjrt_gpu import attention
from torch_pjrt_gpu.attention import scaled_dot_product_attention as by_us
from torch_pjrt_gpu.attention import scaled_dot_product_attention_backward as backward_by_us
from torch_pjrt_gpu.attention_limits import objection_of_call, objection_of_card

HAS_PLUGIN = find_spec("jax_plugins") is not None and any(
    find_spec(f"jax_plugins.xla_cuda{n}") for n in (12, 13)
)
needs_plugin = pytest.mark.skipif(
    not HAS_PLUGIN or os.environ.get("JAX_PLATFORMS") != "cpu",
    reason="JAX's CUDA plugin is not installed (`hatch run aot:run` does), or JAX_PLATFORMS is not `cpu`",
)


def like(*shape: int, dtype: str = "bfloat16") -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


HEADS = like(2, 4, 32, 64)
HALVES = like(2, 4, 32, 64, dtype="float16")
FLOATS = like(2, 4, 32, 64, dtype="float32")
LONG = like(2, 4, 8192, 64)

#   query    keys and values   mask, dropout_p, is_causal, first_row   what is said
CALLS: list[tuple[Any, Any, dict[str, Any], str | None]] = [
    (HEADS, HEADS, {}, None),
    (HEADS, HEADS, {"is_causal": True}, None),
    (HEADS, like(2, 2, 48, 64), {}, None),
    (HEADS, like(2, 1, 33, 64), {"is_causal": True}, None),
    (like(2, 4, 1, 64), HEADS, {}, None),
    (HALVES, HALVES, {}, None),
    (like(2, 4, 31, 8), like(2, 4, 33, 8), {}, None),
    (HEADS, HEADS, {"attn_bias": like(32, 32)}, None),
    (HEADS, HEADS, {"attn_bias": like(2, 4, 32, 32, dtype="bool")}, None),
    (HEADS, HEADS, {"attn_bias": like(2, 1, 1, 32, dtype="bool")}, None),
    (HEADS, HEADS, {"attn_bias": like(1, 1)}, None),
    (LONG, LONG, {"attn_bias": like(8192, 8192, dtype="bool")}, None),
    (HALVES, HALVES, {"attn_bias": like(1, 4, 32, 1, dtype="float16")}, None),
    (like(4, 32, 64), like(4, 32, 64), {}, "4 dims, and this has 3"),
    (FLOATS, FLOATS, {}, "this is float32"),
    (HALVES, HEADS, {}, "this is bfloat16, float16"),
    (HEADS, HEADS, {"dropout_p": 0.1}, "a constant of the program"),
    (HEADS, HEADS, {"is_causal": True, "first_row": 7}, "position is 7"),
    (like(2, 4, 32, 20), like(2, 4, 32, 20), {}, "width 20"),
    (like(2, 3, 32, 64), like(2, 2, 32, 64), {}, "3 heads on 2"),
    (like(2, 4, 0, 64), HEADS, {}, "nothing to compute"),
    (HEADS, like(2, 4, 1, 64), {}, "one key"),
    (like(2, 4, 1, 64), HEADS, {"is_causal": True}, "one query"),
    (HEADS, HEADS, {"attn_bias": HEADS, "is_causal": True}, "besides the causal one"),
    (HEADS, HEADS, {"attn_bias": like(32, 32, dtype="float32")}, "would be rounded"),
    (like(2, 4, 31, 64), HEADS, {"attn_bias": like(31, 32)}, "must be even"),
    (HEADS, HEADS, {"attn_bias": like(3, 1, 32, 32)}, "a mask of shape [3, 1, 32, 32]"),
    (LONG, LONG, {"attn_bias": like(2, 1, 1, 8192, dtype="bool")}, "would take 256 MiB"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "key", "rest", "words"), CALLS)
def test_kernel_says_what_it_has_against_a_call(
    query: Any, key: Any, rest: dict[str, Any], words: str | None
) -> None:
    found = objection_of_call(rules.Attention(None, query, key, key, **rest))

    assert (found is None) if words is None else (words in (found or ""))


def test_values_of_another_width_are_refused() -> None:
    call = rules.Attention(None, like(1, 4, 32, 192), like(1, 4, 32, 192), like(1, 4, 32, 128))

    assert "width 192, of values 128" in (objection_of_call(call) or "")


#   width  capability   cuDNN   what is said
CARDS = [
    (64,   None,        None,   None),
    (128,  (8, 0),      91200,  None),
    (128,  (8, 9),      90000,  None),
    (256,  (9, 0),      90500,  None),
    (128,  (10, 0),     90700,  None),
    (128,  (10, 3),     91100,  None),
    (128,  (12, 1),     91200,  None),
    (64,   (7, 5),      91200,  "compute capability 7.5: it is for 8.0 and later"),
    (64,   (9, 0),      None,   "cuDNN was not found"),
    (64,   (9, 0),      90400,  "cuDNN 9.4: on compute capability 9.0 it takes 9.5"),
    (64,   (10, 3),     91000,  "cuDNN 9.10: on compute capability 10.3 it takes 9.11"),
    (136,  (8, 6),      91200,  "width 136: on compute capability 8.6 it takes up to 128"),
    (264,  (9, 0),      91200,  "it takes up to 256"),
    (256,  (10, 0),     91200,  "it takes up to 128"),
]  # fmt: skip


@pytest.mark.parametrize(("width", "capability", "version", "words"), CARDS)
def test_kernel_says_what_it_has_against_a_card(
    width: int, capability: tuple[int, int] | None, version: int | None, words: str | None
) -> None:
    found = objection_of_card(width, capability, version)

    assert (found is None) if words is None else (words in (found or ""))


def test_what_jax_refuses_is_an_objection_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("no such layout\nand more")

    monkeypatch.setattr(attention.jax.nn, "dot_product_attention", refuse)
    monkeypatch.setattr(attention, "capability", lambda: None)
    monkeypatch.setattr(attention, "version", lambda: None)
    torch.zeros((), device="pjrt").item()  # starts the device, which is asked for its chip

    found = attention.objection(rules.Attention(None, HEADS, HEADS, HEADS))

    assert found == "JAX refuses it: NotImplementedError: no such layout"


def test_call_that_the_kernel_does_not_take_goes_to_the_rule_of_the_core() -> None:
    x = jax.random.normal(jax.random.key(0), (1, 2, 8, 16))
    call = rules.Attention(None, x, x, x, is_causal=True)

    with jax.enable_x64(True):
        ours, theirs = (rule(call) for rule in (by_us, rules.attention))

    np.testing.assert_array_equal(ours[0], theirs[0])


MASKS: dict[str, torch.Tensor | None] = {
    "none": None,
    "causal": None,
    "bools, with a query that sees nothing": torch.ones(6, 10, dtype=torch.bool).tril(-1),
    "floats": torch.randn(2, 4, 6, 10, generator=torch.Generator().manual_seed(1)),
    "floats and minus infinity": torch.zeros(1, 1, 6, 10).masked_fill(
        torch.ones(6, 10).tril(-1) == 0, -torch.inf
    ),
    "keys that fill up": (torch.arange(10) < torch.tensor([[10], [3]]))[:, None, None],
}


@pytest.mark.parametrize("name", MASKS)
def test_what_surrounds_the_kernel_makes_it_pytorchs_attention(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With JAX's own composition in the place of the kernel, which no CPU has."""
    mask, is_causal = MASKS[name], name == "causal"
    plain = jax.nn.dot_product_attention

    def composed(*args: Any, implementation: str, **kwargs: Any) -> Any:
        assert implementation == "cudnn"
        return plain(*args, implementation="xla", **kwargs)

    monkeypatch.setattr(attention.jax.nn, "dot_product_attention", composed)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 6, 16, generator=generator).bfloat16()
    k, v = (torch.randn(2, 2, 10, 16, generator=generator).bfloat16() for _ in range(2))
    grad = torch.randn(2, 4, 6, 16, generator=generator).bfloat16()
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.bfloat16()

    arrays: Any = [None if x is None else as_jax(x) for x in (q, k, v, mask)]
    call = rules.Attention(None, *arrays, is_causal=is_causal, scale=0.3)
    with jax.enable_x64(True):
        out, logsumexp, *_ = by_us(call)
    rest: Any = ([True] * 4, out, logsumexp, None, None, 6, 10, 0.0, is_causal, 0, 0)
    found = backward_by_us(rules.AttentionBackward(as_jax(grad), *arrays, *rest, scale=0.3))

    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.double().requires_grad_()
        leaves.append(mask)
    expected = scaled_dot_product_attention(
        *leaves[:3], attn_mask=mask, is_causal=is_causal, scale=0.3, enable_gqa=True
    )
    gradients = torch.autograd.grad(expected, leaves, grad.double())
    for ours, theirs in zip((out, *found), (expected, *gradients), strict=False):
        mine = torch.from_numpy(np.asarray(ours, np.float64))
        assert (mine - theirs).norm() < 2**-7 * theirs.norm()
    assert (found[3] is None) is (mask is None)
    sees_nothing = name in ("bools, with a query that sees nothing", "floats and minus infinity")
    assert bool((np.asarray(out, np.float32)[:, :, 0] == 0).all()) is sees_nothing


def as_jax(x: torch.Tensor) -> jax.Array:
    if x.dtype == torch.bool:
        return jax.numpy.asarray(x.numpy())
    return jax.numpy.asarray(x.float().numpy(), "bfloat16")


def attention_step(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).float().sum().backward()
    assert q.grad is not None and k.grad is not None
    return q.grad.float().sum() + k.grad.float().sum()


@needs_plugin
def test_program_for_a_card_calls_the_fused_kernel_forward_and_backward() -> None:
    q = torch.empty(2, 8, 256, 64, dtype=torch.bfloat16, device="meta")
    k = torch.empty(2, 4, 256, 64, dtype=torch.bfloat16, device="meta")

    in_halves, in_floats = (
        lowered(attention_step, q, k),
        lowered(attention_step, q.float(), k.float()),
    )

    for kernel in ("@__cudnn$fmhaSoftmax(", "@__cudnn$fmhaSoftmaxBackward("):
        assert kernel in in_halves
        assert kernel not in in_floats
    # Those of the forward and of the backward's rule are the same call.
    calls = [line for line in in_halves.splitlines() if "@__cudnn$fmhaSoftmax(" in line]
    assert len({line.partition("{")[2] for line in calls}) == 1


def masked_step(dtype: torch.dtype, dropout_p: float = 0.0) -> Any:
    """Forward and backward with a mask, whose gradient is wanted if it is of floats."""

    def step(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, mask = q.detach().requires_grad_(), mask.to(dtype)
        if dtype != torch.bool:
            mask.requires_grad_()
        y = scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=dropout_p)
        y.float().sum().backward()
        assert q.grad is not None
        return q.grad.float().sum() if mask.grad is None else mask.grad.float().sum()

    return step


@needs_plugin
@pytest.mark.parametrize(
    ("target", "width", "step", "is_fused"),
    [
        ("h100", 64, masked_step(torch.bool), True),
        ("h100", 64, masked_step(torch.bfloat16), True),
        ("h100", 64, masked_step(torch.bool, dropout_p=0.5), False),
        ("h100", 256, masked_step(torch.bool), True),
        ("a100", 256, masked_step(torch.bool), False),
        ("b200", 128, masked_step(torch.bool), True),
    ],
)
def test_program_with_a_mask_calls_the_kernel_that_adds_it(
    target: str, width: int, step: Any, is_fused: bool
) -> None:
    q = torch.empty(2, 8, 256, width, dtype=torch.bfloat16, device="meta")
    mask = torch.empty(2, 1, 256, 256, dtype=torch.bool, device="meta")

    text = lowered(step, q, mask, target=target)

    for kernel in ("@__cudnn$fmhaScaleBiasSoftmax(", "@__cudnn$fmhaScaleBiasSoftmaxBackward("):
        assert (kernel in text) is is_fused


def lowered(fn: object, *inputs: torch.Tensor, target: str = "h100") -> str:
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
        torch_pjrt.compile_for(target, fn, *inputs)  # pyright: ignore[reportArgumentType]
    return texts[0]
