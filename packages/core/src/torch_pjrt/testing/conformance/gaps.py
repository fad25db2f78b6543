"""What does not conform yet, and why; and where PyTorch's own tolerance is too narrow, and why.

A row covers each combination of its words. It is strict: a case that passes has no row.

    notyet    we mean to do it
    upstream  waits for a change in JAX, XLA or PyTorch
    never     has no meaning on an accelerator
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_pjrt.testing.conformance.cases import Case


@dataclass(frozen=True, slots=True)
class Gap:
    """Cases that fail: `operators`, `dtypes` and `kinds` are words, all combinations are meant."""

    operators: str
    dtypes: str
    kinds: str
    status: str
    why: str

    def cases(self) -> Iterator[Case]:
        """The cases that the row covers."""
        for operator in self.operators.split():
            for dtype in self.dtypes.split():
                for kind in self.kinds.split():
                    yield Case(operator, dtype, kind)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A wider tolerance than PyTorch's own, for each combination of the row's words."""

    operators: str
    dtypes: str
    kinds: str
    rtol: float
    atol: float
    why: str


@dataclass(frozen=True, slots=True)
class OnCpu:
    """Operators (overloads, as words) that the CPU computes, with a copy there and back; and why."""

    overloads: str
    why: str


GAPS: tuple[Gap, ...] = ()

ON_CPU: tuple[OnCpu, ...] = ()

TOLERANCES: tuple[Tolerance, ...] = ()


def gap_of() -> dict[Case, Gap]:
    """The row of each case that is known to fail."""
    return {case: gap for gap in GAPS for case in gap.cases()}


def on_cpu() -> dict[str, str]:
    """Why an overload may run on the CPU."""
    return {overload: row.why for row in ON_CPU for overload in row.overloads.split()}


def tolerance(case: Case) -> tuple[float, float] | None:
    """(rtol, atol) of a case that needs more than PyTorch's own; None for the others."""
    for row in TOLERANCES:
        if (
            case.operator in row.operators.split()
            and case.dtype in row.dtypes.split()
            and case.kind in row.kinds.split()
        ):
            return row.rtol, row.atol
    return None
