"""How each operator is done on padded tensors: by core's table of rules, or by a rule of its own here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.extend import padding
from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.padded import attention, pointwise, shapes
from torch_pjrt_dynamo.padded.sized import NodeCall

_RULES: dict[Any, Callable[[NodeCall], Any]] = {
    **attention.RULES,
    **pointwise.RULES,
    **shapes.RULES,
}

# Core has rules for them that compare with true sizes, or that go by a size which the host has read.
_NOT_IN_GRAPHS = frozenset(
    (
        aten.masked_scatter.default,
        aten.nonzero_static.default,
        aten.repeat_interleave.Tensor,
        aten.sort.default,
        aten.sort.stable,
        aten.topk.default,
    )
)


def rule_of(op: Any) -> Callable[[NodeCall], Any] | None:
    """The rule of an operator, if it has one. What draws numbers would draw others for another shape."""
    own = _RULES.get(op)
    if own is not None or not isinstance(op, torch._ops.OpOverload) or op in _NOT_IN_GRAPHS:
        return own
    if torch.Tag.nondeterministic_seeded in op.tags or op._schema.is_mutable:
        return None
    return padding.rule_of(op)
