"""What a tensor was made of that this thread has recorded and not run: questions that need no read then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch_pjrt.plugin import Node


def nodes_behind(tensor: torch.Tensor) -> Iterator[Node]:
    """The node that has made the array behind `tensor`, then the one that made its first input, and so on.

    None where that array is on the device already, or padded, or another thread's.
    """
    from torch_pjrt.extend import buffer_of, graph_of, is_pjrt, state

    if not is_pjrt(tensor):
        return
    buffer, tape = buffer_of(tensor), state.tape
    if buffer.padded is not None:  # to ask for its value would end its padding
        return
    value = buffer.value
    if value is None or value.array is not None or value.tape is not tape:
        return
    made = {number: node for node in graph_of(tape, ()).nodes for number in node.outputs}
    number = value.number
    while node := made.get(number):
        yield node
        if not node.inputs:
            return
        number = node.inputs[0]
