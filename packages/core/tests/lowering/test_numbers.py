"""A number that has become an input of the program gives what the Python number gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from check import Sample, check
from test_samples import SAMPLES, in_turn
from torch_pjrt.lowering import CORE, Lowering
from torch_pjrt.lowering.table import Rule

NUMBERS = {"number", "float", "Optional[number]", "Optional[float]"}
ENOUGH = 4  # samples an operator: this is about how a rule takes its arguments, not about values


def _takes(op: Any, static: frozenset[str]) -> list[str]:
    """The names of the arguments that may become inputs; "" for the others."""
    arguments = op._schema.arguments
    return [a.name if str(a.type) in NUMBERS and a.name not in static else "" for a in arguments]


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex))


def _with_numbers() -> Iterator[Sample]:
    count: Counter[Any] = Counter()
    for row in SAMPLES:
        if row.op not in CORE or CORE[row.op].random:  # a random one's first argument is a key
            continue
        names = _takes(row.op, CORE[row.op].static)
        given = [x for name, x in zip(names, row.args, strict=False) if name]
        given += [x for name, x in row.kwargs.items() if name in names]
        if any(map(_is_number, given)) and count[row.op] < ENOUGH:
            count[row.op] += 1
            yield row


def _with_inputs(op: Any, lowering: Lowering) -> Rule:
    """The rule, with every number among its arguments made an input of an inner program."""
    names = _takes(op, lowering.static)

    def rule(*args: Any, **kwargs: Any) -> Any:
        named = {str(i): x for i, x in enumerate(args)} | kwargs
        inputs = {
            key: x
            for key, x in named.items()
            if _is_number(x) and (names[int(key)] if key.isdigit() else key in names)
        }

        def inner(inputs: dict[Any, Any]) -> Any:
            given = named | inputs
            return lowering.rule(
                *(given[str(i)] for i in range(len(args))), **{k: given[k] for k in kwargs}
            )

        return jax.jit(inner)(inputs)

    return rule


@pytest.mark.slow("rows")
@pytest.mark.parametrize("row", in_turn(_with_numbers()), ids=str)
def test_number_may_be_an_input(row: Sample):
    lowering = CORE[row.op]

    check(row, Lowering(_with_inputs(row.op, lowering)))
