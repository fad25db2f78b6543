"""Attention by JAX's splash kernel for TPUs: scores never leave the chip's fast memory.

It takes queries and keys in whole blocks of 128, without a bias and without dropout, with windows, segments
and a soft cap. JAX gives what the
forward's kernel leaves for the backward's to its own gradient alone: the rule of the backward calls it again.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import client
from torch_pjrt_kernels.own.rule_of_dims import SplittingRule
from torch_pjrt_kernels.own.sharding import on_chips
from torch_pjrt_kernels.table import Blocks, pair_of

if TYPE_CHECKING:
    from torch_pjrt_kernels.attention.choice import Problem

Array = jax.Array

_LANES = 128
_LARGEST_BLOCK = 512
_SIZES = (128, 256, 512, 1024, 2048)
_WIDTHS = (64, 128, 192, 256)
# Over several chips each computes its batches and its heads, those of queries beside those of their keys.
_QKV, _OUT, _SEGMENTS = "b (n g) q w, b n k w, b n k v", "b (n g) q v", ", b q"
_SPLIT, _SHARED = ("b", "n"), ("n", "g")


def objection(problem: Problem, dtype: str, *, has_bias: bool, dropout_p: float) -> str | None:
    """What the kernel has against a call, from shapes and dtypes alone; None if it takes it."""
    if not _is_there():
        return f"JAX {jax.__version__} has none"
    if dtype != "bfloat16":
        return f"it multiplies in bfloat16, and this is {dtype}"
    if has_bias:
        return "it takes no mask or bias"
    if dropout_p:
        return "it drops no weights"
    if problem.queries % _LANES or problem.keys % _LANES:
        return f"{problem.queries} queries and {problem.keys} keys are no multiples of {_LANES}"
    if problem.width not in _WIDTHS or problem.value_width not in _WIDTHS:
        widths = f"{problem.width} and {problem.value_width}"
        return f"heads of width {widths}: it takes {', '.join(map(str, _WIDTHS))}"
    return None


class Pattern(NamedTuple):
    """Which positions see which, and what bends scores: what the kernel takes besides arrays.

    before, behind   how many positions before its own a query sees, and behind; None: all.
    first_row        the position of the first query.
    """

    before: int | None = None
    behind: int | None = None
    first_row: int = 0
    soft_cap: float | None = None

    def objection(self, problem: Problem) -> str | None:
        """What the kernel has against it: a query that sees no key gets no zeros from it."""
        last = problem.queries + self.first_row
        if self.first_row < 0 or (self.before is not None and last > problem.keys):
            return "a query may see nothing"
        return None


@cache
def _is_there() -> bool:
    """Whether this JAX has the kernel."""
    try:
        from jax.experimental.pallas.ops.tpu import splash_attention
    except ImportError:
        return False
    return hasattr(splash_attention, "make_splash_mha")


def objection_of_the_chip() -> str | None:
    """What the chip that is compiled for has against it, or how the program is spread."""
    at_work = client()
    if at_work.chip.platform != "tpu":
        return f"it is for TPUs, not for {at_work.device.name}"
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.auto_axes:
        left = ", ".join(mesh.auto_axes)
        return (
            f"it is mapped over some axes, and XLA cannot split a kernel along the others: {left}"
        )
    return None


def forward(
    query: Array, key: Array, value: Array, scale: Any, pattern: Pattern,
    segments: Array | None = None, blocks: Blocks | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The output, BHQV, and the logsumexp of the scores, BHQ in float32. `query` is BHQW, `segments` BQ.

    blocks   how many queries and keys one has; None: what was measured, or is usual.
    """

    def run(q: Array, k: Array, v: Array, *rest: Array) -> tuple[Array, Array]:
        kernel = _kernel(q.shape, k.shape, pattern, blocks, residuals=True)
        out, (logsumexp,) = jax.vmap(kernel)(q, k, v, *_segments(*rest))
        return out, logsumexp

    given = (_scaled(query, scale), key, value, *_narrow(segments))
    return on_chips(run, _rule(_QKV, segments, f"{_OUT}, b (n g) q"), *given)


def backward(
    grad_out: Array, query: Array, key: Array, value: Array, scale: Any, pattern: Pattern,
    segments: Array | None = None, blocks: Blocks | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The gradients of query, key and value."""

    def run(grad: Array, q: Array, k: Array, v: Array, *rest: Array) -> tuple[Array, Array, Array]:
        kernel = _kernel(q.shape, k.shape, pattern, blocks, residuals=False)
        given = _segments(*rest)
        _, pull = jax.vjp(lambda *qkv: jax.vmap(kernel)(*qkv, *given), q, k, v)
        return pull(grad)

    grad = lax.convert_element_type(grad_out, query.dtype)
    given = (grad, _scaled(query, scale), key, value, *_narrow(segments))
    found = on_chips(run, _rule(f"{_OUT}, {_QKV}", segments, _QKV), *given)
    return _scaled(found[0], scale), found[1], found[2]


def _rule(arrays: str, segments: Array | None, results: str) -> SplittingRule:
    text = f"{arrays}{'' if segments is None else _SEGMENTS} -> {results}"
    left, _, right = text.partition("->")
    return SplittingRule.parsed(text, left.count(",") + 1, right.count(",") + 1, _SPLIT, _SHARED)


def _scaled(x: Array, scale: Any) -> Array:
    wide = lax.convert_element_type(x, np.dtype(np.float32))
    factor = lax.convert_element_type(
        scale, wide.dtype
    )  # an array, where it changes by steps or layers
    return lax.convert_element_type(wide * factor, x.dtype)


def _narrow(segments: Array | None) -> tuple[Array, ...]:
    return () if segments is None else (lax.convert_element_type(segments, np.dtype(np.int32)),)


def _segments(*given: Array) -> tuple[Any, ...]:
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    return tuple(splash.SegmentIds(x, x) for x in given)


def _kernel(
    query: tuple[int, ...],
    key: tuple[int, ...],
    pattern: Pattern,
    blocks: Blocks | None,
    *,
    residuals: bool,
) -> Any:
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    n_queries, n_keys = query[2], key[2]
    shape = (n_queries, n_keys)
    before, behind, first_row, soft_cap = pattern
    if before is not None or behind not in (None, 0):
        one: Any = splash.LocalMask(shape, (before, behind), first_row)
    elif behind == 0:
        one = splash.CausalMask(shape, first_row)
    else:
        one = splash.FullMask(shape)
    queries, keys = blocks or _blocks(n_queries, n_keys, query[3], is_causal=behind == 0)
    sizes = splash.BlockSizes(
        block_q=queries, block_kv=keys, block_kv_compute=keys,
        block_q_dkv=queries, block_kv_dkv=keys, block_kv_dkv_compute=keys,
        block_q_dq=queries, block_kv_dq=keys,
    )  # fmt: skip
    return splash.make_splash_mha(
        splash.MultiHeadMask([one] * query[1]),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        save_residuals=residuals,
        attn_logits_soft_cap=soft_cap,
    )


def entry_of(queries: int, keys: int, width: int, *, is_causal: bool) -> str:
    """The name of what was measured in the table, for the chip at work. Heads are computed one by one."""
    kind = "causal" if is_causal else "full"
    return f"{client().chip.device_kind} {kind} splash attention {queries}x{keys} {width}"


def candidates(queries: int, keys: int) -> list[Blocks]:
    """Sizes of blocks that the kernel takes for these lengths."""
    return [(q, k) for q in _SIZES for k in _SIZES if queries % q == 0 and keys % k == 0]


def usual_blocks(queries: int, keys: int) -> Blocks:
    """Those of lengths that nobody has measured."""
    return math.gcd(queries, _LARGEST_BLOCK), math.gcd(keys, _LARGEST_BLOCK)


def _blocks(queries: int, keys: int, width: int, *, is_causal: bool) -> Blocks:
    found = pair_of(lambda: entry_of(queries, keys, width, is_causal=is_causal))
    if found is not None and found in candidates(queries, keys):
        return found
    return usual_blocks(queries, keys)
