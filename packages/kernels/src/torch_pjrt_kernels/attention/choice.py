"""Which implementation takes a call of attention, and why not the others: by shapes, dtypes and device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch_pjrt_kernels.attention.form import Sizes
from torch_pjrt_kernels.table import blocks_of

_MiB = 2**20
# Where all scores together take less, of fewer positions, or of so few queries that they take no more than
# the keys, they are made at once: that is as fast (benchmarks/results/kernels.md), and takes little.
LEAST_SCORES_BYTES = 16 * _MiB
LEAST_LENGTH = 512
# The rule of the CPU's plugin is faster for longer: up to so many bytes of scores, and, where they are of
# many heads, each of fewer positions than this, up to more.
LEAST_SCORES_BYTES_OF_CPU = 32 * _MiB
_SHORT_ON_CPU, _LEAST_OF_SHORT = 1024, 512 * _MiB
_FEW_QUERIES = 64
# A processor's cores are fastest with these blocks, whatever the heads and the length are: with some fewer
# queries and keys, a multiple of the least, where those fill the last block better.
_QUERIES_OF_CPU, _KEYS_OF_CPU, _LEAST_OF_CPU = 512, 256, 16
# Of the scores of a block of an accelerator, in float32: with many heads, fewer queries and keys.
_BLOCK_BYTES = 8 * _MiB
_LARGEST, _LEAST = 1024, 256


@dataclass(frozen=True, slots=True)
class Problem:
    """What a call's shapes say. Dtype and whether it is causal only choose among measured sizes of blocks."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    dtype: str = "float32"
    is_causal: bool = False


# How attention is computed, the best first.
OWN = "the device's own kernel"
SPLASH = "JAX's splash kernel"
BLOCKS = "in blocks"
AT_ONCE = "all scores at once"
RAGGED = "JAX's ragged kernel"
SOME_PAGES = "some pages at a time"
KERNEL = "the package's kernel"
LOOPS = "XLA's fusions"


@dataclass(frozen=True, slots=True)
class Way:
    """How a call is computed, and what each better way has against it."""

    name: str
    objections: Mapping[str, str]


def first_without(objections: Mapping[str, str | None]) -> Way:
    """The first way without an objection; the last has none."""
    against: dict[str, str] = {}
    for name, objection in objections.items():
        if objection is None:
            return Way(name, against)
        against[name] = objection
    raise ValueError(f"every way has an objection: {against}")


def objection_to_blocks(problem: Problem, *, over_rule_of_cpu: bool = False) -> str | None:
    """What the blockwise rule has against a call; None where it takes it.

    over_rule_of_cpu   whether it is instead of the rule of the CPU's plugin.
    """
    pairs = problem.queries * problem.keys
    scores = 4 * problem.batch * problem.heads * pairs
    if problem.queries < _FEW_QUERIES or pairs < LEAST_LENGTH**2:
        return f"{problem.queries} queries on {problem.keys} keys are few"
    least = LEAST_SCORES_BYTES
    if over_rule_of_cpu:
        is_short = pairs < _SHORT_ON_CPU**2
        least = _LEAST_OF_SHORT if is_short else LEAST_SCORES_BYTES_OF_CPU
    if scores < least:
        return f"all scores take {scores / _MiB:.0f} MiB: less than {least // _MiB}"
    return None


def sizes_of(problem: Problem, *, on_cpu: bool, measured: bool = True) -> Sizes:
    """The blocks that a call is computed in: one, where the blockwise rule would not take it.

    measured   whether sizes count that `python -m torch_pjrt_kernels tune` found for such a problem.
    """
    pairs = problem.batch * problem.heads
    found = blocks_of(problem) if measured else None
    if objection_to_blocks(problem) is not None:
        queries, keys = problem.queries, problem.keys
    elif found is not None:
        queries, keys = found
    elif on_cpu:
        queries = _equally(problem.queries, _QUERIES_OF_CPU)
        keys = _equally(problem.keys, _KEYS_OF_CPU)
    else:
        side = math.isqrt(_BLOCK_BYTES // (4 * pairs))
        queries = _within(side, _LEAST, _LARGEST)
        keys = _within(_BLOCK_BYTES // (4 * pairs * queries), _LEAST, _LARGEST)
    return Sizes(
        problem.batch,
        problem.key_heads,
        problem.heads // problem.key_heads,
        problem.queries,
        problem.keys,
        min(queries, problem.queries),
        min(keys, problem.keys),
    )


def _equally(n: int, most: int) -> int:
    """The size of as few equal blocks as `n` can be in; the last may be filled up."""
    size = -(-n // -(-n // most))
    return -(-size // _LEAST_OF_CPU) * _LEAST_OF_CPU


def _within(n: int, least: int, most: int) -> int:
    """The greatest power of two that is at most `n`, within bounds."""
    return min(max(1 << max(n.bit_length() - 1, 0), least), most)
