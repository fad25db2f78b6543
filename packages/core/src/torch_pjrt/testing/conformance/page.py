"""The results in a form to read: a summary of a few lines, and the documentation's coverage page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch_pjrt.testing.conformance.cases import ANY_DTYPE, DTYPES, FORWARD, KINDS, Case
from torch_pjrt.testing.conformance.check import Result
from torch_pjrt.testing.conformance.gaps import Gap

_COLUMNS = (*DTYPES, ANY_DTYPE)


def summary(results: Iterable[Result]) -> list[str]:
    """The table by kind and dtype, passed of all cases, and the operators by way."""
    return [*_table(results, code=False), "", *_ways(results)]


def markdown(results: Sequence[Result], gaps: Mapping[Case, Gap]) -> str:
    """The coverage page."""
    raise NotImplementedError


def _table(results: Iterable[Result], *, code: bool) -> Iterator[str]:
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for r in results:
        cell = counts[r.kind, r.dtype]
        cell[0] += r.passed
        cell[1] += 1
    yield "| kind | " + " | ".join(_COLUMNS) + " |"
    yield "|---" * (len(_COLUMNS) + 1) + "|"
    for kind in KINDS:
        cells = [counts.get((kind, dtype), [0, 0]) for dtype in _COLUMNS]
        yield f"| {kind} | " + " | ".join(f"{a}/{b}" if b else "" for a, b in cells) + " |"


def _ways(results: Iterable[Result]) -> Iterator[str]:
    ways: dict[str, str] = {}
    for r in results:
        if r.kind == FORWARD:
            way = "CPU" if r.on_cpu else "PyTorch's decomposition" if r.expanded else "own lowering"
            rank = ("own lowering", "PyTorch's decomposition", "CPU")
            ways[r.operator] = max(ways.get(r.operator, way), way, key=rank.index)
    for way in ("own lowering", "PyTorch's decomposition", "CPU"):
        names = [name for name, w in ways.items() if w == way]
        yield f"{way}: {len(names)} operators"
