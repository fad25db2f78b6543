"""Arrays that hold one number throughout come from the host, if nothing else is to be run.

So are an optimizer's state, a cache of keys and values, and many a first `torch.zeros`. To send them takes
less than to compile a program that fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from torch_pjrt import dtypes
from torch_pjrt.client import partition
from torch_pjrt.client.uploading import put
from torch_pjrt.graph.graph import Node, graph_of
from torch_pjrt.graph.signature import Signature
from torch_pjrt.graph.tape import Tape
from torch_pjrt.overloads import aten

# All arrays of a tape together. Larger ones are filled on the device.
_MOST_BYTES = 64 << 20

_HALVES = (torch.bfloat16, torch.float16)
_FLOATS = (torch.float32, torch.float64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _argument(position: int) -> Callable[[Node], Any]:
    def number(node: Node) -> Any:
        return node.numbers[0].value if node.numbers else node.signature.args[position]

    return number


# What each is filled with.
_FILLS: dict[Any, Callable[[Node], Any]] = {
    aten.zeros.default: lambda _: 0,
    aten.zeros_like.default: lambda _: 0,
    aten.new_zeros.default: lambda _: 0,
    aten.ones.default: lambda _: 1,
    aten.ones_like.default: lambda _: 1,
    aten.new_ones.default: lambda _: 1,
    aten.fill.Scalar: _argument(1),
    aten.full.default: _argument(1),
    aten.full_like.default: _argument(1),
    aten.new_full.default: _argument(2),
    aten.scalar_tensor.default: _argument(0),
}


def fill(tape: Tape, live: Sequence[int]) -> bool:
    """Have the live values of a tape that only fills arrays; False, and nothing is done, of another tape.

    Doing so again does no harm.
    """
    if partition.chosen.partitioner is not None or not all(
        item.op in _FILLS for item in tape.code if item.__class__ is Signature
    ):
        return False
    nodes = graph_of(tape, live).nodes  # each of one value
    wanted = [(nodes[n].signature.outs[0], _FILLS[nodes[n].op](nodes[n])) for n in live]
    if sum(spec.numel * spec.dtype.itemsize for spec, _ in wanted) > _MOST_BYTES:
        return False
    if not all(_is_exact(number, spec.dtype) for spec, number in wanted):
        return False
    for n, (spec, number) in zip(live, wanted, strict=True):
        # Not NumPy's own memory, which no program could take: one number that is repeated is copied.
        host = np.broadcast_to(np.array(number, dtypes.to_jax(spec.dtype)), spec.shape)
        tape.values[n].array = put(host)
    return True


def _is_exact(number: Any, dtype: torch.dtype) -> bool:
    """Whether NumPy makes of the number what PyTorch makes of it."""
    if dtype in _HALVES or dtypes.is_halved(dtype):
        return number in (0, 1)
    if dtype in _FLOATS:
        return isinstance(number, int | float)
    return dtype in _INTEGERS and isinstance(number, int)
