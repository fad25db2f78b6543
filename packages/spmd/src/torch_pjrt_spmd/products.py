"""Operations of matrix products and convolutions, from XLA's text of an instruction.

A position of a convolution's kernel that lies on padding, or between elements of a dilated input, is none.
That counts most for TPUs: their compiler writes a product with batch dims as a convolution whose window is as
large as the batch, of which one position at a time lies on the input. `HloCostAnalysis` of XLA counts alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from torch_pjrt_spmd.hlo import Instruction

_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_BATCH_GROUPS = re.compile(r"batch_group_count=(\d+)")


def products_of(one: Instruction, makers: Sequence[Instruction]) -> int:
    """Two for each product that is summed; 0 of another instruction. `makers` are those of its inputs."""
    taken = [shape for maker in makers for shape in maker.shapes]
    made = sum(map(prod, one.shapes))
    if one.kind == "dot" and (dims := _CONTRACTED.search(one.rest)) and taken:
        return 2 * made * prod(taken[0][int(d)] for d in dims[1].split(",") if d)
    if one.kind == "convolution" and (labels := _LABELS.search(one.rest)) and len(taken) > 1:
        return _of_convolution(one, labels.groups(), taken)
    if one.kind == "custom-call" and "matmul" in one.rest and taken:
        return 2 * made * taken[0][-1]
    return 0


def _of_convolution(
    one: Instruction, labels: Sequence[str], taken: Sequence[tuple[int, ...]]
) -> int:
    of_input, of_kernel, of_result = labels
    x, kernel, y = taken[0], taken[1], one.shapes[-1]
    found = _WINDOW.search(one.rest)
    window = dict(part.split("=") for part in found[1].split()) if found else {}
    positions = 1
    for i, name in enumerate(sorted(c for c in of_input if c.isdigit())):
        positions *= _on_the_input(
            x[of_input.index(name)],
            y[of_result.index(name)],
            {key: values.split("x")[i] for key, values in window.items()},
        )
    groups = _BATCH_GROUPS.search(one.rest)
    batch = x[of_input.index("b")] // (int(groups[1]) if groups else 1)
    return 2 * batch * kernel[of_kernel.index("i")] * y[of_result.index("f")] * positions


def _on_the_input(n: int, n_made: int, window: dict[str, str]) -> int:
    """How many pairs of a result's place and a kernel's position lie on one of the input's n elements."""
    size, stride = int(window.get("size", 1)), int(window.get("stride", 1))
    begin = int(window.get("pad", "0_0").split("_")[0])
    of_input, of_kernel = int(window.get("lhs_dilate", 1)), int(window.get("rhs_dilate", 1))
    end = (n - 1) * of_input + 1
    found = 0
    for position in range(size):
        at = np.arange(n_made) * stride + position * of_kernel - begin
        found += int(((at >= 0) & (at < end) & (at % of_input == 0)).sum())
    return found
