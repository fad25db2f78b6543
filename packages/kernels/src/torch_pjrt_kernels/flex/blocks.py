"""How large the blocks are that are computed at once: those of the mask, or several or parts of these."""

from __future__ import annotations

from typing import Any

from torch_pjrt_kernels.attention.choice import Problem
from torch_pjrt_kernels.attention.choice import sizes_of as sizes_without_mask
from torch_pjrt_kernels.attention.form import Sizes

# A mask's blocks that are smaller are taken together.
_LEAST = 128


def sizes_of(
    problem: Problem, sparse: tuple[int, int] | None, options: dict[str, Any], *, on_cpu: bool
) -> Sizes:
    """The sizes of a call. `sparse`: of the mask's blocks, if it has some.

    options   PyTorch's `kernel_options`: `BLOCK_M` queries and `BLOCK_N` keys are computed at once.
    """
    usual = sizes_without_mask(problem, on_cpu=on_cpu)
    queries, keys = usual.block_queries, usual.block_keys
    if sparse is not None:
        queries, keys = (
            _fitting(s, _LEAST, n) for s, n in zip(sparse, (queries, keys), strict=True)
        )
    if "BLOCK_M" in options:
        queries = _fitting(sparse[0] if sparse else 1, options["BLOCK_M"], options["BLOCK_M"])
    if "BLOCK_N" in options:
        keys = _fitting(sparse[1] if sparse else 1, options["BLOCK_N"], options["BLOCK_N"])
    return Sizes(
        problem.batch, problem.key_heads, problem.heads // problem.key_heads, problem.queries,
        problem.keys, queries, keys,
    )  # fmt: skip


def _fitting(sparse: int, least: int, most: int) -> int:
    """Some blocks of a mask, or a part of one without a rest: `least` or nearly, and at most `most`."""
    if sparse <= max(most, least):
        return sparse * max(least // sparse, 1)
    return next(n for n in range(most, 0, -1) if sparse % n == 0)
