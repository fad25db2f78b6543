"""The results in a form to read: a summary of a few lines, and the documentation's coverage page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version

from torch_pjrt.testing.conformance import gaps
from torch_pjrt.testing.conformance.cases import (
    ANY_DTYPE,
    DTYPES,
    FORWARD,
    KINDS,
    cases_of,
    operators,
)
from torch_pjrt.testing.conformance.check import Result

_COLUMNS = (*DTYPES, ANY_DTYPE)
_WAYS = ("own lowering", "PyTorch's decomposition", "CPU")


def summary(results: Iterable[Result]) -> list[str]:
    """The table by kind and dtype, passed of all cases, and the operators by way."""
    results = list(results)
    counts = [f"{way}: {len(names)} operators" for way, names in _by_way(results).items()]
    return [*_table(results), "", *counts]


def from_disk(results: Iterable[Result]) -> str:
    """How many of the programs came from disk."""
    results = list(results)
    loaded, compiled = sum(r.loaded for r in results), sum(r.compiled for r in results)
    return f"{loaded} programs were loaded from disk, {compiled} had to be compiled anew"


def markdown(results: Sequence[Result]) -> str:
    """The coverage page. It says which cases were not run."""
    ways = _by_way(results)
    n_operators = sum(map(len, ways.values()))
    samples = sum(r.samples for r in results)
    lines = [
        "# Operators",
        "",
        "Written by `hatch run conformance --page docs/operators.md`; not to be edited.",
        "",
        f"Every entry of PyTorch's `op_db` ({n_operators} operators), every sample, on the `pjrt` device",
        f"and on the CPU: {len(results)} cases of {samples} runs.",
        f"PyTorch {version('torch')}, JAX {version('jax')}.",
        "A case is one operator, one dtype and one kind of check, and passes if all of its samples do:",
        "values within `torch.testing.assert_close`'s own tolerance, dtype, shape, contiguity; for errors",
        "the exception's class, and its text where PyTorch's shared checks word it.",
        "",
        "## Cases that pass, of all",
        "",
        *_table(results),
        "",
        *_shares(results),
        *_not_run(results),
        "",
        f"{sum(r.rounded for r in results)} runs passed beyond that tolerance, being about as close to the",
        "result in double precision as the CPU's own (`testing/conformance/compare.py` has the rule);",
        f"{sum(r.chance for r in results)} draw random numbers or give memory that nobody wrote, and have no",
        "values to compare.",
        "",
        "## Ways",
        "",
        "| way | operators | share |",
        "|---|--:|--:|",
        *(
            f"| {way} | {len(names)} | {len(names) / n_operators:.1%} |"
            for way, names in ways.items()
        ),
        "",
        "What runs on the CPU, for some samples at least:",
        "",
        "| operator | why |",
        "|---|---|",
        *_reasons(results),
        "",
        "## Gaps",
        "",
        "| operators | dtypes | kinds | status | why |",
        "|---|---|---|---|---|",
        *(_row(g.operators, g.dtypes, g.kinds, g.status, g.why) for g in gaps.GAPS),
        "",
        "## Wider tolerances",
        "",
        "| operators | dtypes | kinds | rtol | atol | why |",
        "|---|---|---|---|---|---|",
        *(
            _row(t.operators, t.dtypes, t.kinds, str(t.rtol), str(t.atol), t.why)
            for t in gaps.TOLERANCES
        ),
        "",
        "## Operator by operator",
        "",
        "Dtypes that pass, of those that PyTorch supports on CPU.",
        "",
        "| operator | way | " + " | ".join(KINDS) + " |",
        "|---" * (len(KINDS) + 2) + "|",
        *_operators(results, ways),
    ]
    return "\n".join(lines) + "\n"


def _table(results: Iterable[Result]) -> Iterator[str]:
    cells = _counts((r.kind, r.dtype, r) for r in results)
    yield "| kind | " + " | ".join(_COLUMNS) + " |"
    yield "|---" * (len(_COLUMNS) + 1) + "|"
    for kind in KINDS:
        yield f"| {kind} | " + " | ".join(_of(cells.get((kind, d))) for d in _COLUMNS) + " |"


def _shares(results: Iterable[Result]) -> Iterator[str]:
    cells = _counts((r.kind, "", r) for r in results)
    for kind in KINDS:
        if (kind, "") in cells:
            passed, total = cells[kind, ""]
            yield f"- {kind}: {passed} of {total}, {passed / total:.2%}"


def _not_run(results: Iterable[Result]) -> Iterator[str]:
    known = {r.case for r in results}
    missing = Counter(c.kind for name in operators() for c in cases_of(name) if c not in known)
    if missing:
        yield ""
        counts = ", ".join(f"{n} of kind {kind}" for kind, n in missing.items())
        yield f"**Not run: {counts}.** This page is not of a whole run."


def _operators(results: Iterable[Result], ways: dict[str, list[str]]) -> Iterator[str]:
    way_of = {name: way for way, names in ways.items() for name in names}
    cells = _counts((r.operator, r.kind, r) for r in results)
    for name in sorted(way_of):
        yield _row(f"`{name}`", way_of[name], *(_of(cells.get((name, kind))) for kind in KINDS))


def _counts(items: Iterable[tuple[str, str, Result]]) -> dict[tuple[str, str], tuple[int, int]]:
    """(row, column) -> (passed, all)."""
    counts: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row, column, result in items:
        passed, total = counts[row, column]
        counts[row, column] = passed + result.passed, total + 1
    return dict(counts)


def _of(counts: tuple[int, int] | None) -> str:
    return f"{counts[0]}/{counts[1]}" if counts else ""


def _by_way(results: Iterable[Result]) -> dict[str, list[str]]:
    """The operators by the furthest way that some sample of their forward takes."""
    way_of: dict[str, int] = {}
    for r in results:
        if r.kind == FORWARD:
            way = 2 if r.on_cpu else 1 if r.expanded else 0
            way_of[r.operator] = max(way, way_of.get(r.operator, 0))
    return {name: [o for o, w in way_of.items() if w == way] for way, name in enumerate(_WAYS)}


def _reasons(results: Iterable[Result]) -> Iterator[str]:
    reasons = gaps.on_cpu()
    for overload in sorted({name for r in results for name in r.on_cpu}):
        yield _row(f"`{overload}`", reasons.get(overload, "not known"))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
