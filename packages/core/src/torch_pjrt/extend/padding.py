"""Tensors whose arrays have room for more elements than there are. **Unstable**: this part will change.

Names here come and go between any two versions, and are for packages of this repository.

    PaddedBuffer    a buffer whose array has room for more elements along some dims than there are;
                    is_padded(buffer) says whether it still has
    padded_tensor   a tensor of the true size on such a buffer
    padded_buffer_of  the buffer of a tensor that shows all of one; None for other tensors
    Parts, Names    of which factors each of its dims is made, and what its maker calls them
    Count           a data-dependent size along a dim: on the host, on the device, and the capacity
    with_count      a tensor of such a size: the first `count.n` elements of an ordinary one
    padded_view     how a tensor of data-dependent size, or a view of it, looks with its padding
    recent          the counts that this thread has met last
    resized         the spec of another shape whose dims lie in memory in the same order
    rule_of         how an operator is done on padded tensors: a function of a PaddedCall, which a
                    package makes; its tensors are Sized, and what cannot be done is Unsuited
    Dim, Factor     of what factors a dim is made: packed(factors) makes one, has_padding(dim) and
                    one_factor(dim) ask it; broadcast(shapes) are those of tensors together
    leaves, wide    what is in lists within lists; the dtype in which PyTorch sums one
    only            refuses a call in which other arguments are padded
    is_pointwise    whether an operator computes each element on its own
    looks_at_values whether an operator refuses some values; 1 is none of them
    range_checks    the indices of a call that are to be checked, each with the dim that bounds it, if
                    takes_indices(op);
                    defer_check_of has the device do so, against a size that it holds;
                    known_to_be_inside says whether the host knows more
    sizes_are_exact whether nothing is padded now

    >>> factor: Factor = "n"  # what stands for a size that varies
    >>> dim: Dim = packed([2, 3, factor])
    >>> dim
    (6, 'n')
    >>> parts: Parts = ((4, 2),)  # of one dim: room for four elements, two of them true
    >>> names: Names = ((factor,),)  # of the parts of one dim
"""

from __future__ import annotations

from torch_pjrt.run import sync
from torch_pjrt.tensor.checks.bounds import (
    defer_check_of,
    known_to_be_inside,
    range_checks,
    takes_indices,
)
from torch_pjrt.tensor.checks.values import looks_at_values
from torch_pjrt.tensor.padding.dims import (
    Dim,
    Factor,
    Unsuited,
    broadcast,
    has_padding,
    one_factor,
    packed,
)
from torch_pjrt.tensor.padding.padded import padded_view, with_count
from torch_pjrt.tensor.padding.padded_call import PaddedCall, Sized, leaves, only, wide
from torch_pjrt.tensor.padding.rules import is_pointwise
from torch_pjrt.tensor.padding.table import rule_of
from torch_pjrt.tensor.storage import counts
from torch_pjrt.tensor.storage.counts import Count, recent
from torch_pjrt.tensor.storage.padded_buffer import (
    Names,
    PaddedBuffer,
    Parts,
    is_padded,
    padded_buffer_of,
    padded_tensor,
    resized,
)

__all__ = [
    "Count",
    "Dim",
    "Factor",
    "Names",
    "PaddedBuffer",
    "PaddedCall",
    "Parts",
    "Sized",
    "Unsuited",
    "broadcast",
    "defer_check_of",
    "has_padding",
    "is_padded",
    "is_pointwise",
    "known_to_be_inside",
    "leaves",
    "looks_at_values",
    "one_factor",
    "only",
    "packed",
    "padded_buffer_of",
    "padded_tensor",
    "padded_view",
    "range_checks",
    "recent",
    "resized",
    "rule_of",
    "sizes_are_exact",
    "takes_indices",
    "wide",
    "with_count",
]


def sizes_are_exact() -> bool:
    """Whether calls are not padded: all values are checked, or a step is captured, whose sizes are fixed.

    >>> sizes_are_exact()
    False
    """
    return counts.exact or bool(sync.listeners)
