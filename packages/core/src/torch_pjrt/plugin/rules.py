"""What rules of operators are made with, for who writes their own. Importing it imports JAX.

What a rule may assume and must return is said by `LoweringTable`'s own page, `lowering/table.py`.

Types and dtypes:

    promoted        operands as PyTorch promotes them: arrays of one dtype, and that dtype
    Promote         how: to floats, to integers, always bool
    opmath          the dtype in which PyTorch computes with one of fewer bits
    to_jax, to_torch    a dtype of one as the other's
    axes            the dims of a fold, counted from the front
    without_x64     a rule, or a part of one, under JAX's usual 32 bits

Core's rules that a device's own may build on, by the operators' names; arguments that PyTorch does not have:

    attention, attention_backward   take one `Attention` or `AttentionBackward`, frozen dataclasses of the
                                    operator's arguments, which `LoweringTable.lowers(..., call=Attention)`
                                    makes. `first_row`: which query of a causal attention the first one is;
                                    the backward's `over_rows` sums the product of two arrays over rows
    over_rows                       core's
    seed_of, key_of                 the key that attention drops weights with as the integer that its backward
                                    is given, and back; `kept` is the mask, True where a weight stays
    convolution, convolution_backward, convolution_backward_overrideable
                                    `kind`: a subclass of `Convolution`, whose methods are the maps between
                                    input, kernel and output
    grouped_mm                      `groups`: an object of a subclass of `Groups`, which multiplies by groups
    core_rules                      all of them: a LoweringTable, without what a device's plugin replaces
"""

from __future__ import annotations

from torch_pjrt.dtypes import to_jax, to_torch
from torch_pjrt.lowering.attention import Attention, AttentionBackward, key_of, over_rows, seed_of
from torch_pjrt.lowering.attention import scaled_dot_product_attention as attention
from torch_pjrt.lowering.attention import (
    scaled_dot_product_attention_backward as attention_backward,
)
from torch_pjrt.lowering.conv import Geometry as Convolution
from torch_pjrt.lowering.conv import (
    convolution,
    convolution_backward,
    convolution_backward_overrideable,
)
from torch_pjrt.lowering.dropout import kept
from torch_pjrt.lowering.grouped_matmul import Groups, grouped_mm
from torch_pjrt.lowering.narrow import without_x64
from torch_pjrt.lowering.promote import Promote, opmath, promoted
from torch_pjrt.lowering.reduction import axes
from torch_pjrt.lowering.table import LoweringTable

__all__ = [
    "Attention",
    "AttentionBackward",
    "Convolution",
    "Groups",
    "Promote",
    "attention",
    "attention_backward",
    "axes",
    "convolution",
    "convolution_backward",
    "convolution_backward_overrideable",
    "core_rules",
    "grouped_mm",
    "kept",
    "key_of",
    "opmath",
    "over_rows",
    "promoted",
    "seed_of",
    "to_jax",
    "to_torch",
    "without_x64",
]


def core_rules() -> LoweringTable:
    """Core's rules of all operators, for programs that are for several devices at once.

    >>> aten.add.Tensor in core_rules()
    True
    """
    from torch_pjrt.lowering import CORE

    return CORE
