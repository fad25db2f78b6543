"""Tensors whose arrays have room for more elements than there are. **Unstable**: this part will change.

Core has one kind for sizes that only values decide (one dim, the number on the device: *counted*) and
one for the buckets of `torch.compile` (several dims: *roomy*). They are to become one; until then names
here come and go between any two versions, and are for packages of this repository.

    Count           how many elements there are along a dim: on the host, on the device, and room for how many
    CountedBuffer   the buffer of a counted tensor; is_counted(buffer) says whether it still is
    counted         a counted tensor: the first `count.n` elements of an ordinary one
    roomy           how a counted tensor looks with its room
    recent          the counts that this thread has met last
    Parts, Names    of which factors each dim of a roomy tensor is made, and what its maker calls them
    roomy_tensor    a roomy tensor
    room_of         the buffer of one; None for other tensors
    in_order_of     the face of another shape whose dims lie in memory in the same order
    fill_rest       the operator that fills the room behind the true elements with a number
    highest, lowest what a fold of a dtype ignores
    is_pointwise    whether an operator computes each element on its own
    sizes_are_exact whether nothing is padded now
"""

from __future__ import annotations

from torch_pjrt.operators import fill_rest
from torch_pjrt.run import sync
from torch_pjrt.tensor import counts
from torch_pjrt.tensor.buffer import CountedBuffer
from torch_pjrt.tensor.counted import counted, roomy
from torch_pjrt.tensor.counts import Count, is_counted, recent
from torch_pjrt.tensor.padding import highest, is_pointwise, lowest
from torch_pjrt.tensor.roomy import Names, Parts, in_order_of, room_of, roomy_tensor

__all__ = [
    "Count",
    "CountedBuffer",
    "Names",
    "Parts",
    "counted",
    "fill_rest",
    "highest",
    "in_order_of",
    "is_counted",
    "is_pointwise",
    "lowest",
    "recent",
    "room_of",
    "roomy",
    "roomy_tensor",
    "sizes_are_exact",
]


def sizes_are_exact() -> bool:
    """Whether calls are not padded: all values are checked, or a step is captured, whose sizes are fixed."""
    return counts.exact or bool(sync.listeners)
