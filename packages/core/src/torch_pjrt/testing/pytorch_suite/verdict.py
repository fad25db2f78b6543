"""What is wrong with results, given the rows of `gaps.py`, which are strict in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from torch_pjrt.testing.pytorch_suite.gaps import GAPS, Gap
from torch_pjrt.testing.pytorch_suite.outcomes import Outcome, Result, file_of


class Verdict:
    """Judges results one by one, and rows at the end."""

    def __init__(self, gaps: Iterable[Gap] = GAPS) -> None:
        self.gaps = tuple(gaps)

    def gap_of(self, test: str) -> Gap | None:
        """The row that covers a test."""
        return next((g for g in self.gaps if any(fnmatchcase(test, p) for p in g.patterns)), None)

    def on(self, result: Result) -> str | None:
        """What is wrong with a result, in words; None if it passed or a row knows it."""
        gap = self.gap_of(result.test)
        if result.failed and gap is None:
            return f"{result.outcome.upper()} {result.test}: {result.why}"
        if result.outcome is Outcome.PASSED and gap is not None:
            return f"PASSED {result.test}: the pattern in gaps.py that covers it must leave it out"
        return None

    def on_rows(self, results: Iterable[Result]) -> Iterator[str]:
        """Patterns that match no test, of the files that ran whole."""
        tests = [r.test for r in results]
        files = {file_of(t) for t in tests}
        for gap in self.gaps:
            for pattern in gap.patterns:
                ran = any(fnmatchcase(file, file_of(pattern)) for file in files)
                if ran and not any(fnmatchcase(t, pattern) for t in tests):
                    yield f"ROW {pattern}: no such test"

    def table(self, results: Iterable[Result]) -> Iterator[str]:
        """A line for each file. What PyTorch skips, and what rows call meaningless, does not apply."""
        by_file: dict[str, Counter[str]] = {}
        for r in results:
            counts = by_file.setdefault(file_of(r.test), Counter())
            gap = self.gap_of(r.test) if r.failed else None
            counts["never" if gap is not None and gap.status == "never" else r.outcome] += 1
        total = Counter[str]()
        for counts in by_file.values():
            total.update(counts)
        columns = ("passed", "failed", "crashed", "hung", "never", "skipped")
        width = max(map(len, (*by_file, "total")))
        yield f"{'':{width}}  " + "  ".join(f"{c:>8}" for c in columns) + "   of what applies"
        for file, counts in (*sorted(by_file.items()), ("total", total)):
            applies = sum(counts[c] for c in ("passed", "failed", "crashed", "hung"))
            share = f"{counts['passed'] / applies:.2%}" if applies else "-"
            row = "  ".join(f"{counts[c] or '':>8}" for c in columns)
            yield f"{file:{width}}  {row}   {share:>15}"
