"""Arguments that an operator got in a later PyTorch than the one that its rule was written for.

PyTorch adds them at the end, with a default that means what was meant before.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_pjrt.errors import LoweringError

if TYPE_CHECKING:
    from torch_pjrt.lowering.table import Lowering


def unknown_arguments(op: Any, lowering: Lowering) -> list[Any]:
    """Those of the operator's schema that its rule does not take."""
    known = _parameters(lowering)
    by_position = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = {p.name for p in known}
    takes_all = {p.kind for p in known}
    n_positional = len(by_position) - bool(lowering.random)
    unknown = []
    placed = [a for a in op._schema.arguments if not a.kwarg_only]
    if inspect.Parameter.VAR_POSITIONAL not in takes_all:
        unknown += placed[n_positional:]
    if inspect.Parameter.VAR_KEYWORD not in takes_all:
        unknown += [a for a in op._schema.arguments if a.kwarg_only and a.name not in names]
    return unknown


def known_arguments(
    op: Any, lowering: Lowering, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]] | None:
    """A call's arguments without those that the rule does not take; None where it takes all.

    Raises `LoweringError` where one of them is not the default.
    """
    if not hasattr(op, "_schema"):
        return None
    unknown = {a.name: a for a in unknown_arguments(op, lowering)}
    if not unknown:
        return None
    placed = [a.name for a in op._schema.arguments if not a.kwarg_only]
    first = 1 if lowering.random else 0
    by_position = dict(zip(placed, args[first:], strict=False))
    for name, argument in unknown.items():
        given = by_position.get(name, kwargs.get(name, argument.default_value))
        if given is not argument.default_value and repr(given) != repr(argument.default_value):
            raise LoweringError(
                f"The rule of `{op}` ({lowering.where}) does not know its argument `{name}`.",
                saw=f"{name}={given}",
                expected=f"{argument.default_value}, as it is by default",
                hint="the rule was written for an earlier PyTorch: is there a newer version of its package?",
            )
    kept = [x for name, x in by_position.items() if name not in unknown]
    return [*args[:first], *kept], {k: x for k, x in kwargs.items() if k not in unknown}


def _parameters(lowering: Lowering) -> list[inspect.Parameter]:
    """Of the rule as it is called; of one that takes a `call`, the fields of that."""
    rule = getattr(lowering.rule, "call", lowering.rule)
    try:
        return list(inspect.signature(rule, follow_wrapped=False).parameters.values())
    except ValueError:  # of a function in C
        everything = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        return [inspect.Parameter(f"all{n}", kind) for n, kind in enumerate(everything)]
