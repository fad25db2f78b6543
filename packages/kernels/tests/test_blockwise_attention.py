"""Blockwise attention: values and gradients are right within what roundings make, and memory is linear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from attention_bounds import bounds
from jax.extend.random import threefry2x32_p

from torch_pjrt.plugin import rules
from torch_pjrt_kernels.attention import groups, reference
from torch_pjrt_kernels.attention.choice import Problem, objection_to_blocks, sizes_of
from torch_pjrt_kernels.attention.form import Form, Sizes
from torch_pjrt_kernels.attention.shapes import LONG, SHAPES
from torch_pjrt_kernels.attention.weight_dropout import kept_block

P = 0.25
ALL_ROWS = (None, None)


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """Rules run with 64 bits."""
    with jax.enable_x64(True):
        yield


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Of float32's values, as float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).double()


def arrays_of(kind: str, p: Problem) -> list[Any]:
    """Bias, slopes, segments of queries and of keys, sinks: those that a form of this kind has."""
    whole = (p.batch, p.heads, p.queries, p.keys)
    bias = slopes = of_queries = of_keys = sinks = None
    if kind == "bias":
        bias = normal(*whole, seed=5)
    elif kind == "bias of rows":
        bias = normal(1, p.heads, p.queries, 1, seed=5)
    elif kind == "mask":
        bias = normal(1, 1, p.queries, p.keys, seed=5) > -0.5
        bias[0, 0, 1] = False
    elif kind == "key padding":
        bias = (torch.arange(p.keys) < p.keys - 7).expand(p.batch, 1, 1, p.keys)
    elif kind == "ALiBi":
        slopes = 0.5 ** torch.arange(1, p.heads + 1).double()
    elif kind == "segments":
        of_queries, of_keys = (
            (torch.arange(n) // 13).expand(p.batch, n) for n in (p.queries, p.keys)
        )
    elif kind == "sinks":
        sinks = normal(p.heads, seed=6)
    return [bias, slopes, of_queries, of_keys, sinks]


#   what is special      arguments of `reference.weights`
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (9, 4)},
    "causal window, later": {"is_causal": True, "window": (20, None), "first_position": 5},
    "soft cap": {"soft_cap": 2.0},
    "bias": {},
    "bias of rows": {},
    "mask": {},
    "key padding": {"is_causal": True},
    "ALiBi": {"is_causal": True},
    "segments": {},
    "sinks": {"is_causal": True},
    "dropout": {"is_causal": True},
}


def compared(kind: str, shape: str, dtype: torch.dtype) -> list[tuple[str, Any, Any, Any]]:
    """Name, ours, the reference's, and the bound, of the output and of each gradient."""
    p, form = SHAPES[shape], FORMS[kind]
    q = normal(p.batch, p.heads, p.queries, p.width, seed=1)
    k = normal(p.batch, p.key_heads, p.keys, p.width, seed=2)
    v = normal(p.batch, p.key_heads, p.keys, p.value_width, seed=3)
    grad = normal(p.batch, p.heads, p.queries, p.value_width, seed=4)
    arrays = arrays_of(kind, p)
    sizes = Sizes(p.batch, p.key_heads, p.heads // p.key_heads, p.queries, p.keys, 16, 24)
    dropped, kept = kind == "dropout", None
    if dropped:
        key = jax.random.key(7, impl="threefry2x32")
        mask = rules.kept(key, (p.batch, p.heads, p.queries, p.keys), P)
        kept = torch.from_numpy(np.array(mask))
    given = [jax.numpy.asarray(x.to(dtype).numpy()) for x in (q, k, v, grad)]
    others = [None if x is None else jax.numpy.asarray(x.numpy()) for x in arrays]

    def run(
        q: Any, k: Any, v: Any, grad: Any, bias: Any, slopes: Any, of_q: Any, of_k: Any, sinks: Any
    ) -> Any:
        whole = Form(
            p.width**-0.5,
            soft_cap=form.get("soft_cap"),
            slopes=slopes,
            bias=bias,
            is_causal=form.get("is_causal", False),
            window=form.get("window", ALL_ROWS),
            first_row=form.get("first_position", 0),
            segments=None if of_q is None else (of_q, of_k),
            sinks=sinks,
            dropout_p=P if dropped else 0.0,
            dropout_key=jax.random.key(7, impl="threefry2x32") if dropped else None,
        )
        out, logsumexp = groups.forward(q, k, v, whole, sizes)
        float_bias = bias is not None and bias.dtype != np.bool_
        found = groups.backward(grad, q, k, v, out, logsumexp, whole, sizes, of_bias=float_bias)
        return out, *found

    ours = [
        None if x is None else torch.from_numpy(np.array(x)).double()
        for x in jax.jit(run)(*given, *others)
    ]

    leaves = [
        q,
        k,
        v,
        *[x for x in (arrays[0], arrays[4]) if x is not None and x.is_floating_point()],
    ]
    leaves = [x.detach().requires_grad_() for x in leaves]
    rest = iter(leaves[3:])
    with_leaves = list(arrays)
    for i in (0, 4):
        if arrays[i] is not None and arrays[i].is_floating_point():
            with_leaves[i] = next(rest)
    out, _ = reference.attention(
        *leaves[:3], *with_leaves, kept=kept, dropout_p=P if dropped else 0.0, **form
    )
    expected = torch.autograd.grad(out, leaves, grad)
    limits = bounds(q, k, v, grad, form, arrays, kept, dtype, P if dropped else 0.0)
    names = ["out", "query", "key", "value"]
    pairs = zip(names, ours[:4], [out.detach(), *expected[:3]], limits, strict=False)
    found: list[tuple[str, Any, Any, Any]] = list(pairs)
    others_ours = [x for x in ours[4:] if x is not None]
    for mine, theirs in zip(others_ours, expected[3:], strict=True):
        found.append(("bias or sinks", mine, theirs, None))
    return found


@pytest.mark.parametrize("heads_of_group", [1, 2, 4])
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.slow
def test_values_and_gradients_are_the_references_within_what_roundings_make(
    kind: str, heads_of_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All heads at once where four are a group, one or two at a time otherwise."""
    monkeypatch.setattr(groups, "HEADS_OF_GROUP", heads_of_group)
    shape = "shared key heads" if kind in ("sinks", "bias", "dropout") else "parts of blocks"
    for name, ours, theirs, bound in compared(kind, shape, torch.float32):
        if bound is None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        else:
            assert (ours - theirs).abs().le(bound).all(), (
                name,
                ((ours - theirs).abs() / bound).max(),
            )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["causal", "window"])
@pytest.mark.slow("rows")
def test_in_float64_they_are_too(kind: str, shape: str) -> None:
    for name, ours, theirs, bound in compared(kind, shape, torch.float64):
        assert (ours - theirs).abs().le(bound).all(), (name, ((ours - theirs).abs() / bound).max())


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    out = compared("mask", "parts of blocks", torch.float32)[0][1]

    assert out[:, :, 1].abs().max() == 0


def test_blocks_draw_what_is_drawn_for_all_weights_at_once() -> None:
    key, heads, whole = jax.random.key(3, impl="threefry2x32"), (2, 3), (70, 90)
    all_ = np.array(rules.kept(key, (*heads, *whole), P))

    of_block = kept_block(
        key, P, (*heads[1:], *whole), (0, 0, np.int32(16), np.int32(48)), (*heads, 16, 24)
    )

    assert np.array_equal(np.array(of_block), all_[:, :, 16:32, 48:72])


def test_numbers_of_weights_beyond_32_bits_are_right() -> None:
    """The counter of weight (0, 0, 2**17, 5) of 2**18 x 2**18 has 35 bits."""
    key, n = jax.random.key(3, impl="threefry2x32"), 2**18
    at = (2**17 * n + 5, 2**17 * n + 6)
    words = jax.random.key_data(key)
    high, low = (np.array([x >> 32 for x in at], np.uint32), np.array(at).astype(np.uint32))
    bits = threefry2x32_p.bind(words[0], words[1], high, low)

    drawn = kept_block(key, P, (1, n, n), (0, 0, np.int32(2**17), np.int32(5)), (1, 1, 1, 2))

    expected = np.array(bits[0] ^ bits[1]) >= round(P * 2**32)
    assert np.array_equal(np.array(drawn)[0, 0, 0], expected)


def bytes_between(p: Problem) -> int:
    """What a step needs beside what it takes and gives: XLA's own analysis, on the CPU."""
    like = jax.ShapeDtypeStruct((p.batch, p.heads, p.queries, p.width), np.float32)
    sizes, form = sizes_of(p, on_cpu=True), Form(p.width**-0.5, is_causal=True)

    def step(q: Any, k: Any, v: Any, grad: Any) -> Any:
        out, logsumexp = groups.forward(q, k, v, form, sizes)
        return out, *groups.backward(grad, q, k, v, out, logsumexp, form, sizes)[:3]

    compiled = jax.jit(step).lower(like, like, like, like).compile()
    found = compiled.memory_analysis()
    assert found is not None
    return found.temp_size_in_bytes


def test_memory_between_is_less_than_64_megabytes_at_16k_and_grows_no_faster_than_the_length() -> (
    None
):
    """All scores are 4.3 GB at 16K, and 17 GB at 32K."""
    of_16k, of_32k = bytes_between(LONG["16K"]), bytes_between(LONG["32K"])

    assert of_16k < 64e6
    assert of_32k < 2.1 * of_16k


def test_short_calls_are_left_to_the_rule_beneath() -> None:
    assert objection_to_blocks(LONG["one layer of a GPT-2"]) is None
    assert "are few" in (objection_to_blocks(Problem(1, 32, 8, 1, 100_000, 128, 128)) or "")
    assert "MiB" in (objection_to_blocks(Problem(1, 1, 1, 1024, 1024, 64, 64)) or "")
