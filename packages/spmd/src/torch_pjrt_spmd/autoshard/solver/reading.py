"""Problems from files: JSON, plain or gzip, as ASPLOS 2025's contest on intra-operator parallelism has them.

{"problem": {"nodes": {"intervals": [[a, b], ...], "costs": [[...], ...], "usages": [[...], ...]},
             "edges": {"nodes": [[i, j], ...], "costs": [[row-major table], ...]},
             "usage_limit": 50}}
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN, Problem

GZIP = b"\x1f\x8b"
LARGEST_USAGE = 2**47  # so that those of 65,536 nodes add up within 64 bits


class UnreadableProblem(ValueError):
    """A file that is not a problem. The text says which part, what was found, and what was expected."""


def read(path: str | Path) -> Problem:
    """The problem in a file. Numbers of `FORBIDDEN` and more among the costs are `FORBIDDEN`.

    Raises `UnreadableProblem` if it is not one, and `OSError` if there is no such file.
    """
    data = Path(path).read_bytes()
    try:
        whole = json.loads(gzip.decompress(data) if data[:2] == GZIP else data)
    except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
        raise UnreadableProblem(f"{path} is not JSON, plain or gzip: {error}") from error
    try:
        return from_json(whole)
    except UnreadableProblem as error:
        raise UnreadableProblem(f"{path}: {error}") from error


def from_json(whole: Any) -> Problem:
    """The problem in what `json.loads` gave; see the top of this file for its form."""
    try:
        problem = whole["problem"]
        nodes, edges = problem["nodes"], problem["edges"]
        parts = nodes["intervals"], nodes["costs"], nodes["usages"], edges["nodes"], edges["costs"]
        limit = problem.get("usage_limit")
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableProblem(
            f"no part {error}; expected the keys problem, nodes, edges"
        ) from error
    if not all(isinstance(part, list) for part in parts):
        raise UnreadableProblem("what describes nodes and edges are lists; one of them is none")
    raw_intervals, raw_costs, raw_usages, raw_ends, raw_tables = parts
    if not len(raw_intervals) == len(raw_costs) == len(raw_usages) or len(raw_ends) != len(
        raw_tables
    ):
        raise UnreadableProblem("lists that describe the same nodes or edges differ in length")
    node_costs = [_costs(costs, f"node {at}") for at, costs in enumerate(raw_costs)]
    node_usages = [_usages(usages, f"node {at}") for at, usages in enumerate(raw_usages)]
    for at, (costs, usages) in enumerate(zip(node_costs, node_usages, strict=True)):
        if len(costs) != len(usages) or not len(costs):
            raise UnreadableProblem(
                f"node {at} has {len(costs)} costs and {len(usages)} usages, expected one each a strategy"
            )
    ends = _pairs(raw_ends, "edge", "two nodes")
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    tables: list[np.ndarray] = []
    edge_tables = np.zeros(len(raw_ends), np.int64)
    sizes = [len(costs) for costs in raw_costs]
    for at, ((i, j), entries) in enumerate(zip(ends.tolist(), raw_tables, strict=True)):
        if not (0 <= i < len(sizes) and 0 <= j < len(sizes)):
            raise UnreadableProblem(
                f"edge {at} joins {i} and {j}, but there are {len(sizes)} nodes"
            )
        if not isinstance(entries, list) or len(entries) != sizes[i] * sizes[j]:
            n = len(entries) if isinstance(entries, list) else "no"
            raise UnreadableProblem(
                f"edge {at} has {n} entries, expected {sizes[i]} x {sizes[j]} for {i} and {j}"
            )
        try:
            key = (sizes[i], tuple(entries))
            which = known.get(key)
        except TypeError as error:
            raise UnreadableProblem(f"edge {at} has an entry that is no number") from error
        if which is None:
            which = known[key] = len(tables)
            tables.append(_costs(entries, f"edge {at}").reshape(sizes[i], sizes[j]))
        edge_tables[at] = which
    if limit is not None and not _is_whole(limit):
        raise UnreadableProblem(f"the usage_limit is {limit!r}, expected an integer or nothing")
    return Problem(
        node_costs=node_costs,
        node_usages=node_usages,
        intervals=_pairs(raw_intervals, "interval", "two times"),
        edges=ends,
        tables=tables,
        edge_tables=edge_tables,
        usage_limit=None if limit is None else int(limit),
    )


def to_json(problem: Problem) -> dict[str, Any]:
    """What `from_json` takes."""
    return {
        "problem": {
            "nodes": {
                "intervals": problem.intervals.tolist(),
                "costs": [c.tolist() for c in problem.node_costs],
                "usages": [u.tolist() for u in problem.node_usages],
            },
            "edges": {
                "nodes": problem.edges.tolist(),
                "costs": [problem.tables[k].ravel().tolist() for k in problem.edge_tables],
            },
            "usage_limit": problem.usage_limit,
        }
    }


def _costs(numbers: Any, where: str) -> np.ndarray:
    """Integers; those too large for 64 bits are forbidden, as all from `FORBIDDEN` on."""
    found = _array(numbers, where, "costs")
    if found.dtype.kind != "i":
        if odd := [n for n in numbers if not _is_whole(n)]:
            raise UnreadableProblem(f"{where} has the cost {odd[0]!r}, expected an integer")
        lowest = -FORBIDDEN - 1
        found = np.array([max(min(int(n), FORBIDDEN), lowest) for n in numbers], np.int64)
    if found.min(initial=0) < -FORBIDDEN:
        raise UnreadableProblem(f"{where} has a cost below {-FORBIDDEN}")
    return np.minimum(found, FORBIDDEN)


def _usages(numbers: Any, where: str) -> np.ndarray:
    """Integers whose sums over all nodes are within 64 bits."""
    found = _array(numbers, where, "usages")
    if found.dtype.kind != "i":
        if odd := [n for n in numbers if not _is_whole(n)]:
            raise UnreadableProblem(f"{where} has the usage {odd[0]!r}, expected an integer")
        found = np.array([max(min(int(n), LARGEST_USAGE), -1) for n in numbers], np.int64)
    if found.min(initial=0) < 0 or found.max(initial=0) >= LARGEST_USAGE:
        raise UnreadableProblem(f"{where} has a usage that is not from 0 to {LARGEST_USAGE - 1}")
    return found


def _array(numbers: Any, where: str, what: str) -> np.ndarray:
    """Of a flat list of numbers: int64, or what is still to be looked at."""
    try:
        found = np.array(numbers) if isinstance(numbers, list) else None
    except (ValueError, OverflowError):  # lists of lists
        found = None
    if found is None or found.ndim != 1 or (len(found) and found.dtype.kind not in "iufO"):
        raise UnreadableProblem(f"{where} has {what} that are no list of numbers: {numbers!r:.60}")
    return found if found.dtype.kind == "i" else found.astype(object)


def _pairs(rows: list[Any], what: str, expected: str) -> np.ndarray:
    """int64 [rows, 2]"""
    for at, row in enumerate(rows):
        if not (isinstance(row, list) and len(row) == 2 and all(map(_is_time, row))):
            raise UnreadableProblem(f"{what} {at} is {row!r:.60}, expected {expected}")
    return np.array(rows, np.int64).reshape(-1, 2)


def _is_whole(number: Any) -> bool:
    """An integer, also one that is written as 3.0."""
    if isinstance(number, bool):
        return False
    return isinstance(number, int) or (isinstance(number, float) and number.is_integer())


def _is_time(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and abs(number) < 2**62
