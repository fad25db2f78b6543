"""Results have the CPU's strides: PyTorch's samples of each operator, with dims that lie in another order.

Strides are known when an operator is recorded, so nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt import sync

pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES = 3  # of each operator
ORDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "last two": lambda x: x.mT.contiguous().mT,
    "first two": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
}
#   operators whose calls cannot be tried so
OTHERS = {
    "as_strided_partial_views":  "takes places in the memory of its input",
    "tensor_split":              "takes positions on the CPU",
}  # fmt: skip


def rearranged(order: str, x: Any) -> Any:
    is_matrix = isinstance(x, torch.Tensor) and x.layout is torch.strided and x.ndim > 1
    return ORDERS[order](x) if is_matrix else x


def on_device(x: Any) -> Any:
    return x.to("pjrt") if isinstance(x, torch.Tensor) else x


def strides(result: Any) -> Iterator[tuple[torch.Size, list[int]]]:
    """Of tensors with elements, but for dims of size 1, in which nobody takes a step."""
    for x in tree_leaves(result):
        if isinstance(x, torch.Tensor) and x.layout is torch.strided and x.numel():
            yield x.shape, [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]


def lie_alike(a: Any, b: Any) -> bool:
    """Whether copies to the device kept their strides: what overlaps or has gaps does not."""
    return list(strides(a)) == list(strides(b))


def tried(op: Any, order: str) -> Iterator[tuple[Any, Any]]:
    """What the device and the CPU give for each sample that both can be asked for."""
    for sample in islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
        given = tree_map(lambda x: rearranged(order, x), (sample.input, sample.args, sample.kwargs))
        try:
            theirs = list(strides(op(given[0], *given[1], **given[2])))
        except (RuntimeError, AssertionError):  # no input may lie so, or it is CUDA's alone
            continue
        there = tree_map(on_device, given)
        if lie_alike(given, there):
            yield list(strides(op(there[0], *there[1], **there[2]))), theirs


@pytest.mark.slow("file")
@pytest.mark.parametrize("order", ORDERS)
def test_results_lie_as_those_of_the_cpu(order: str) -> None:
    n, differ = 0, []
    for op in op_db:
        if torch.float32 in op.dtypes and op.formatted_name not in OTHERS:
            for ours, theirs in tried(op, order):
                n += 1
                if ours != theirs:
                    differ.append((op.formatted_name, ours, theirs))
            sync()

    assert not differ
    assert n > 1000
