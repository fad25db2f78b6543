"""What is wrong with results, given what `gaps.py` knows. A row is strict, unless its case varies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch_pjrt.testing.conformance import gaps
from torch_pjrt.testing.conformance.cases import Case, cases_of, operators
from torch_pjrt.testing.conformance.check import Result


class Verdict:
    """Judges results one by one, and the rows of `gaps.py` at the end."""

    def __init__(self) -> None:
        self._gaps = gaps.gap_of()
        self._on_cpu = gaps.on_cpu()

    def on(self, result: Result) -> str | None:
        """What is wrong with a result, in words; None if it passed or a row knows it."""
        gap = self._gaps.get(result.case)
        if not result.passed and gap is None:
            return f"FAILED {result.case}: {result.failures[0]}"
        if result.passed and gap is not None and gap.status != gaps.VARIES:
            return f"PASSED {result.case}: its row in gaps.py can go"
        unknown = [name for name in result.on_cpu if name not in self._on_cpu]
        if unknown:
            return f"ON CPU {result.case}: {', '.join(unknown)} ran there and has no row in gaps.py"
        return None

    def on_rows(self, results: Iterable[Result], *, whole: bool) -> Iterator[str]:
        """Rows that stand for nothing: a case that does not exist; after a whole run, an unused reason."""
        for case in self._gaps:
            if not _exists(case):
                yield f"ROW {case}: PyTorch's op_db has no such case"
        if whole:
            seen = {name for result in results for name in result.on_cpu}
            for overload in self._on_cpu.keys() - seen:
                yield f"ROW {overload}: nothing ran on the CPU by this name"


def _exists(case: Case) -> bool:
    return case.operator in operators() and case in set(cases_of(case.operator, (case.kind,)))
