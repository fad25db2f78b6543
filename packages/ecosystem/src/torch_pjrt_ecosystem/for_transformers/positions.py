"""Whether positions are those of one sequence: known without a read where the model has counted them itself.

Without a mask models ask whether `position_ids` begin anew, as those of packed sequences do. What a model
makes where it was given none is `torch.arange(...)`, plus a number, the same in each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt_ecosystem.for_transformers.recorded import nodes_behind
from torch_pjrt_ecosystem.replacing import wrap

if TYPE_CHECKING:
    from torch_pjrt.plugin import Node

_COUNTED = ("aten.arange.default", "aten.arange.start")
_SHIFTED = ("aten.add.Tensor", "aten.sub.Tensor")
_REPEATED, _READ = "aten.repeat.default", "pjrt.read"


def install(masking_utils: Any) -> None:
    """`masking_utils` is `transformers.masking_utils`."""
    wrap(masking_utils, "find_packed_sequence_indices", _find_packed)


def _find_packed(
    original: Callable[..., torch.Tensor | None], position_ids: torch.Tensor
) -> torch.Tensor | None:
    if torch.compiler.is_compiling() or not count_up(position_ids):
        return original(position_ids)
    return None


def count_up(positions: torch.Tensor) -> bool:
    """Whether each row is known to count up by 1; False where that takes a read."""
    behind = nodes_behind(positions)
    node = next(behind, None)
    layout = positions.shape, positions.stride(), int(positions.storage_offset())
    if node is None or not _is_of_rows(*layout, node.signature.outs[0].shape):
        return False
    while node is not None:
        name = str(node.op)
        if name in _COUNTED:
            return True
        if not _keeps_rows(name, node):
            return False
        node = next(behind, None)
    return False


def _keeps_rows(name: str, node: Node) -> bool:
    """Whether each row of the result counts up where each row of its input does."""
    if name in _SHIFTED:
        return len(node.inputs) == 1  # the other is a number
    before, after = node.signature.specs[:1], node.signature.outs[0]
    if name == _REPEATED:
        return before[0].shape[-1:] == after.shape[-1:]
    if name == _READ:
        _, spec, offset = node.signature.args[:3]
        return offset == 0 and _is_of_rows(spec.shape, spec.strides, 0, before[0].shape)
    return False


def _is_of_rows(
    shape: Sequence[int], strides: Sequence[int], offset: int, base: Sequence[int]
) -> bool:
    """Whether each row of this window is within one row of the array of the shape `base`."""
    if not shape or not base or strides[-1] != 1:
        return False
    if len(base) == 1:
        return True
    begins = (offset, *(n for n, size in zip(strides[:-1], shape, strict=False) if size > 1))
    return shape[-1] == base[-1] and all(n % base[-1] == 0 for n in begins)
