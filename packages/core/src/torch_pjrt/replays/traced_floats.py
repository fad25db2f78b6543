"""Floats that know how they were computed from others, so that they can be computed anew from other ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

# Computes a float from those that were given, as the step's Python did.
Formula = Callable[[Sequence[float]], float]


class Comparisons:
    """What Python compared that depends on the given floats: with other outcomes it might do something else.

    are_over   no more are added, and floats that are computed from now on are plain ones.
    """

    def __init__(self) -> None:
        self.are_over = False
        self._made: list[tuple[Callable[[Sequence[float]], bool], bool]] = []

    def add(self, compare: Callable[[Sequence[float]], bool], outcome: bool) -> None:
        """`compare` gives the outcome for other floats."""
        if not self.are_over:
            self._made.append((compare, outcome))

    def come_out_the_same(self, floats: Sequence[float]) -> bool:
        """Whether all outcomes are what they were, for these floats."""
        try:
            return all(compare(floats) is outcome for compare, outcome in self._made)
        except ArithmeticError:
            return False


class TracedFloat(float):
    """A float with its formula. Arithmetic with Python's numbers gives traced ones; all else plain ones.

    >>> comparisons = Comparisons()
    >>> rate, decay = given((0.5, 0.25), comparisons)
    >>> factor = 1 - rate * decay
    >>> factor, factor.formula((0.1, 0.2))
    (0.875, 0.98)
    >>> (
    ...     decay > 0,
    ...     comparisons.come_out_the_same((0.1, 0.2)),
    ...     comparisons.come_out_the_same((0.1, 0.0)),
    ... )
    (True, True, False)
    """

    __slots__ = ("comparisons", "formula")
    formula: Formula
    comparisons: Comparisons

    __hash__ = float.__hash__

    def __reduce__(self) -> Any:
        """A copy is a plain float."""
        return float, (float(self),)

    def __bool__(self) -> bool:
        """Whether it is not zero: a comparison."""
        return self != 0.0


def given(floats: Sequence[float], comparisons: Comparisons) -> list[TracedFloat]:
    """The floats from which others will be computed; what is compared of any of these is added there."""
    return [_traced(x, operator.itemgetter(i), comparisons) for i, x in enumerate(floats)]


def _traced(x: float, formula: Formula, comparisons: Comparisons) -> TracedFloat:
    traced = TracedFloat(x)
    traced.formula, traced.comparisons = formula, comparisons
    return traced


_NUMBERS = (float, int, bool, TracedFloat)


def _formula_of(x: Any) -> Formula:
    return x.formula if x.__class__ is TracedFloat else lambda _: x


def _binary(compute: Callable[[Any, Any], Any], *, is_reflected: bool) -> Callable[..., Any]:
    def method(self: TracedFloat, other: Any) -> Any:
        if other.__class__ not in _NUMBERS:
            return NotImplemented
        first, second = (other, self) if is_reflected else (self, other)
        result = compute(_plain(first), _plain(second))
        is_complex = result.__class__ is not float  # a power of a negative number
        if is_complex or self.comparisons.are_over:
            return result
        f, g = _formula_of(first), _formula_of(second)
        return _traced(result, lambda floats: compute(f(floats), g(floats)), self.comparisons)

    return method


def _unary(compute: Callable[[Any], Any]) -> Callable[..., Any]:
    def method(self: TracedFloat) -> Any:
        f, result = self.formula, compute(_plain(self))
        if self.comparisons.are_over:
            return result
        return _traced(result, lambda floats: compute(f(floats)), self.comparisons)

    return method


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def method(self: TracedFloat, other: Any) -> Any:
        if other.__class__ not in _NUMBERS:
            return NotImplemented
        outcome = compare(_plain(self), _plain(other))
        f, g = _formula_of(self), _formula_of(other)
        self.comparisons.add(lambda floats: compare(f(floats), g(floats)), outcome)
        return outcome

    return method


def _plain(x: Any) -> Any:
    return float(x) if x.__class__ is TracedFloat else x


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _compute = getattr(operator, _name)
    setattr(TracedFloat, f"__{_name}__", _binary(_compute, is_reflected=False))
    setattr(TracedFloat, f"__r{_name}__", _binary(_compute, is_reflected=True))
for _name in ("neg", "pos", "abs"):
    setattr(TracedFloat, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(TracedFloat, f"__{_name}__", _comparison(getattr(operator, _name)))
