"""How each operator is done on padded tensors: a row says what it needs, or a function does it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from torch_pjrt.tensor.padding import folds, indexing, joining
from torch_pjrt.tensor.padding.padded_call import PaddedCall
from torch_pjrt.tensor.padding.rules import padding_of

Rule = Callable[[PaddedCall], Any]

RULES: dict[Any, Rule] = {**folds.RULES, **indexing.RULES, **joining.RULES}


@cache
def rule_of(op: Any) -> Rule | None:
    """The rule of a functional overload, if it has one.

    >>> rule_of(aten.sin.default) is None, rule_of(aten.linalg_qr.default) is None
    (False, True)
    """
    rule = RULES.get(op)
    if rule is None and (padding := padding_of(op)) is not None:
        rule = partial(PaddedCall.by_rule, rule=padding)
    return rule
