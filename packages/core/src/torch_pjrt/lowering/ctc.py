"""Lowerings of connectionist temporal classification: the loss, and its backward.

The loss of a sample is that of all paths through the times that spell its target, with blanks between any
two labels and repetitions as wanted. `log_alpha[n, t, s]` is the logarithm of the probability of all paths
that have spelt the first `s` of blank, label, blank, label, ..., blank by time `t`.
Source: A. Graves et al., Connectionist Temporal Classification, ICML 2006, section 4.1.

    log_probs    times, samples, classes.
    targets      one row of labels a sample, or all labels of all samples one after the other.
    lengths      are tensors: other lengths are the same program.
    arithmetic   runs in float32 for float16 and bfloat16, and is rounded once at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from torch_pjrt.lowering.dims import INT32, along
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float, Integer

Array = jax.Array

table = LoweringTable("ctc")


def _rows(targets: Array, lengths: Array) -> Array:
    """One row of labels a sample; what lies beyond a sample's length is any label."""
    if targets.ndim == 2:
        return targets
    starts = lax.cumsum(lengths) - lengths
    positions = starts[:, None] + along((1, targets.size), 1)
    return targets.at[positions].get(mode="clip")


def _spelling(rows: Array, blank: int, classes: int) -> Array:
    """Blank, label, blank, label, ..., blank, a row for each sample."""
    labels = jnp.clip(as_dtype(rows, INT32), 0, max(classes - 1, 0))
    blanks = lax.full_like(labels, blank)
    pairs = jnp.stack([blanks, labels], 2).reshape(len(rows), 2 * rows.shape[1])
    return jnp.concatenate([pairs, lax.full((len(rows), 1), blank, INT32)], 1)


def _shifted(x: Array, by: int) -> Array:
    """`x[:, s - by]`; minus infinity where there is none."""
    low = -jnp.inf
    if by > 0:
        return jnp.pad(x, ((0, 0), (by, 0)), constant_values=low)[:, : x.shape[1]]
    return jnp.pad(x, ((0, 0), (0, -by)), constant_values=low)[:, -by:]


def _sum_of(*logarithms: Array) -> Array:
    """The logarithm of the sum; minus infinity of nothing but that."""
    largest = logarithms[0]
    for other in logarithms[1:]:
        largest = lax.max(largest, other)
    finite = jnp.where(largest == -jnp.inf, 0, largest)
    return lax.log(sum(lax.exp(x - finite) for x in logarithms)) + finite


def _may_skip(spelling: Array, blank: int) -> Array:
    """Where a path may come from two before: at a label other than the one before it."""
    before = jnp.pad(spelling, ((0, 0), (2, 0)), constant_values=blank)[:, : spelling.shape[1]]
    return (spelling != blank) & (spelling != before)


def _emitted(log_probs: Array, spelling: Array) -> Array:
    """The log-probability of each label of the spelling: times, samples, positions in the spelling."""
    labels = jnp.broadcast_to(spelling, (len(log_probs), *spelling.shape))
    return jnp.take_along_axis(log_probs, labels, 2, mode="promise_in_bounds")


@table.lowers(aten._ctc_loss.Tensor)
def ctc_loss(
    log_probs: Float[Array, "times samples classes"],
    targets: Integer[Array, "samples longest"] | Integer[Array, " labels"],
    input_lengths: Integer[Array, " samples"],
    target_lengths: Integer[Array, " samples"],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Float[Array, " samples"], Float[Array, "samples times spelling"]]:
    """The loss of each sample, and `log_alpha`. PyTorch makes 0 of an infinite loss by itself."""
    x = as_dtype(log_probs, opmath(log_probs.dtype))
    rows = _rows(targets, target_lengths)
    spelling = _spelling(rows, blank, x.shape[2])
    emitted = _emitted(x, spelling)
    skips = _may_skip(spelling, blank)
    position = along(spelling.shape, 1)
    ends = 2 * as_dtype(target_lengths, INT32)[:, None]

    def step(before: Array, now: Array) -> tuple[Array, Array]:
        skipped = jnp.where(skips, _shifted(before, 2), -jnp.inf)
        after = _sum_of(before, _shifted(before, 1), skipped) + now
        return after, after

    # Before the first time nothing is spelt, which is like a blank at position -1.
    start = (position == 0) | ((position == 1) & (ends > 0))
    first = jnp.where(start, emitted[0], -jnp.inf)
    _, later = lax.scan(step, first, emitted[1:])
    log_alpha = jnp.swapaxes(jnp.concatenate([first[None], later]), 0, 1)
    last = jnp.maximum(as_dtype(input_lengths, INT32) - 1, 0)[:, None, None]
    final = jnp.take_along_axis(log_alpha, last, 1)[:, 0]
    # Both the last blank and the last label end a path.
    final = jnp.where((position == ends) | (position == ends - 1), final, -jnp.inf)
    total = jax.nn.logsumexp(final, 1)
    nothing = jnp.where(ends[:, 0] == 0, 0, -jnp.inf)
    total = jnp.where(input_lengths == 0, nothing, total)
    return as_dtype(-total, log_probs.dtype), as_dtype(log_alpha, log_probs.dtype)


@table.lowers(aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(
    grad: Float[Array, " samples"],
    log_probs: Float[Array, "times samples classes"],
    targets: Integer[Array, "samples longest"] | Integer[Array, " labels"],
    input_lengths: Integer[Array, " samples"],
    target_lengths: Integer[Array, " samples"],
    neg_log_likelihood: Float[Array, " samples"],
    log_alpha: Float[Array, "samples times spelling"],
    blank: int,
    zero_infinity: bool = False,
) -> Float[Array, "times samples classes"]:
    """Of each class and time: its probability, less the share of the paths that have it then."""
    wide = opmath(log_probs.dtype)
    x, alpha = as_dtype(log_probs, wide), as_dtype(log_alpha, wide)
    rows = _rows(targets, target_lengths)
    spelling = _spelling(rows, blank, x.shape[2])
    emitted = _emitted(x, spelling)
    skips = _shifted(jnp.where(_may_skip(spelling, blank), 0.0, -jnp.inf), -2)
    position = along(spelling.shape, 1)
    ends = 2 * as_dtype(target_lengths, INT32)[:, None]
    last = as_dtype(input_lengths, INT32)[:, None] - 1
    is_end = (position == ends) | (position == ends - 1)

    def step(after: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        time, emission = now
        skipped = _shifted(after, -2) + as_dtype(skips, wide)
        before = _sum_of(after, _shifted(after, -1), skipped)
        before = jnp.where(time == last, jnp.where(is_end, 0, -jnp.inf), before)
        before = jnp.where((time <= last) & (position <= ends), before + emission, -jnp.inf)
        return before, before

    times = along((len(x),), 0)
    _, beta = lax.scan(step, lax.full_like(emitted[0], -jnp.inf), (times, emitted), reverse=True)
    # The CPU's forward leaves `log_alpha` uninitialised where no path that ends in time comes by.
    both = jnp.where(beta == -jnp.inf, -jnp.inf, jnp.swapaxes(alpha, 0, 1) + beta)
    sample = along(spelling.shape, 0)

    def by_class(paths: Array) -> Array:
        """Those through each class, added up."""
        largest = lax.full(x.shape[1:], -jnp.inf, wide).at[sample, spelling].max(paths)
        finite = jnp.where(largest == -jnp.inf, 0, largest)
        shares = lax.exp(paths - finite[sample, spelling])
        return lax.log(lax.full_like(finite, 0).at[sample, spelling].add(shares)) + finite

    loss = as_dtype(neg_log_likelihood, wide)[:, None]
    slope = lax.exp(x) - lax.exp(jax.vmap(by_class)(both) + loss - x)
    slope = slope * as_dtype(grad, wide)[:, None]
    counts = times[:, None, None] <= last
    if zero_infinity:
        counts = counts & (loss != jnp.inf)
    return as_dtype(jnp.where(counts, slope, 0), log_probs.dtype)
