"""How each operator is done on tensors with room: the table of all rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt_dynamo.padded import (
    attention,
    folds,
    losses,
    places,
    pointwise,
    products,
    rows,
    shapes,
)
from torch_pjrt_dynamo.padded.sized import Call

_RULES: dict[Any, Callable[[Call], Any]] = {
    **attention.RULES,
    **folds.RULES,
    **losses.RULES,
    **places.RULES,
    **products.RULES,
    **rows.RULES,
    **shapes.RULES,
}


def rule_of(op: Any) -> Callable[[Call], Any] | None:
    """The rule of an operator, if it has one."""
    return _RULES.get(op) or (pointwise.pointwise if pointwise.suits(op) else None)
