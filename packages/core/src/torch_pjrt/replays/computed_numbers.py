"""Which numbers of a recording are computed anew in each replay: those that two observed calls agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_pjrt.replays.array_slots import Stale
from torch_pjrt.replays.group_numbers import Following, Formulas, is_same, same_floats
from torch_pjrt.replays.observation import Launch, Observed
from torch_pjrt.replays.traced_floats import Formula


def agreed_formulas(first: Observed, second: Observed) -> list[Formulas]:
    """For each launch of the second call, formulas that give the float that either call had there."""
    both = (first.following.floats, second.following.floats)
    return [_agreed(a, b, both) for a, b in zip(first.launches, second.launches, strict=False)]


def _agreed(
    first: Launch, second: Launch, floats: tuple[Sequence[float], Sequence[float]]
) -> Formulas:
    found = {}
    for i, formulas in second.formulas.items():
        fit = tuple(f for f in formulas if _gives(f, floats, (first.floats[i], second.floats[i])))
        if fit:
            found[i] = fit
    return found


def _gives(
    formula: Formula, floats: tuple[Sequence[float], Sequence[float]], results: tuple[float, float]
) -> bool:
    try:
        return same_floats([formula(x) for x in floats], results)
    except ArithmeticError:
        return False


@dataclass(slots=True)
class ComputedNumbers:
    """What a replay computes from the numbers of groups.

    formulas     for each launch.
    following    what was seen of the numbers in the last call that was observed.
    proven       positions of the numbers that differed between calls that agreed; others have to stay.
    """

    formulas: Sequence[Formulas]
    following: Following
    proven: frozenset[int]

    @classmethod
    def of(cls, first: Observed, second: Observed) -> ComputedNumbers:
        """Those of two calls that did the same."""
        x, y = first.following.floats, second.following.floats
        proven = frozenset(i for i, same in enumerate(map(is_same, x, y)) if not same)
        return cls(agreed_formulas(first, second), second.following, proven)

    def confirmed_by(self, other: ComputedNumbers) -> ComputedNumbers:
        """The same, after another call, which with the last one gives `other`: what holds in both."""
        formulas = [
            {i: formula for i, formula in new.items() if i in old}
            for old, new in zip(self.formulas, other.formulas, strict=True)
        ]
        return ComputedNumbers(formulas, other.following, self.proven | other.proven)

    def fit(self, floats: Sequence[float]) -> bool:
        """Whether a replay with these numbers would do what the step would."""
        before = self.following.floats
        if same_floats(before, floats):
            return True
        return (
            len(before) == len(floats)
            and all(i in self.proven or same for i, same in enumerate(map(is_same, before, floats)))
            and self.following.comparisons.come_out_the_same(floats)
        )

    def floats_of(self, number: int, launch: Launch, floats: Sequence[float]) -> list[float]:
        """The floats of this launch, computed from these numbers. Raises `Stale` where they can't be."""
        computed = list(launch.floats)
        inputs = {int(i) for i in launch.program.plan.floats}
        known: dict[tuple[Formula, ...], float] = {}
        for i, formulas in self.formulas[number].items():
            if formulas not in known:
                known[formulas] = _result(formulas, floats)
            if i not in inputs and not is_same(computed[i], known[formulas]):
                raise Stale(
                    "a number of an optimizer has changed that is a constant of the program"
                )
            computed[i] = known[formulas]
        return computed


def _result(formulas: tuple[Formula, ...], floats: Sequence[float]) -> float:
    try:
        results = [formula(floats) for formula in formulas]
    except ArithmeticError as error:
        raise Stale(f"a number of an optimizer has another value, with which: {error}") from error
    if not all(is_same(results[0], x) for x in results):
        raise Stale("two numbers of an optimizer that were the same are not any more")
    return results[0]
