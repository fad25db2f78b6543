"""Problems from files: JSON, plain or gzip, as ASPLOS 2025's contest on intra-operator parallelism has them.

{"problem": {"nodes": {"intervals": [[a, b], ...], "costs": [[...], ...], "usages": [[...], ...]},
             "edges": {"nodes": [[i, j], ...], "costs": [[row-major table], ...]},
             "usage_limit": 50}}
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN, Problem

GZIP = b"\x1f\x8b"


class UnreadableProblem(ValueError):
    """A file that is not a problem. The text says which part, what was found, and what was expected."""


def read(path: str | Path) -> Problem:
    """The problem in a file. Numbers of `FORBIDDEN` and more among the costs are `FORBIDDEN`.

    Raises `UnreadableProblem` if it is not one, and `OSError` if there is no such file.
    """
    data = Path(path).read_bytes()
    try:
        whole = json.loads(gzip.decompress(data) if data[:2] == GZIP else data)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
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
        raw_intervals, raw_costs, raw_usages = nodes["intervals"], nodes["costs"], nodes["usages"]
        raw_ends, raw_tables = edges["nodes"], edges["costs"]
    except (KeyError, TypeError) as error:
        raise UnreadableProblem(
            f"no part {error}; expected the keys problem, nodes, edges"
        ) from error
    if not len(raw_intervals) == len(raw_costs) == len(raw_usages) or len(raw_ends) != len(
        raw_tables
    ):
        raise UnreadableProblem("lists that describe the same nodes or edges differ in length")
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    tables: list[np.ndarray] = []
    edge_tables = np.zeros(len(raw_ends), np.int64)
    sizes = [len(costs) for costs in raw_costs]
    for at, ((i, j), entries) in enumerate(zip(raw_ends, raw_tables, strict=True)):
        if not (0 <= i < len(sizes) and 0 <= j < len(sizes)):
            raise UnreadableProblem(
                f"edge {at} joins {i} and {j}, but there are {len(sizes)} nodes"
            )
        if len(entries) != sizes[i] * sizes[j]:
            raise UnreadableProblem(
                f"edge {at} has {len(entries)} entries, expected {sizes[i]} x {sizes[j]} for {i} and {j}"
            )
        key = (sizes[i], tuple(entries))
        which = known.get(key)
        if which is None:
            which = known[key] = len(tables)
            tables.append(_costs(entries).reshape(sizes[i], sizes[j]))
        edge_tables[at] = which
    for at, (costs, usages) in enumerate(zip(raw_costs, raw_usages, strict=True)):
        if len(costs) != len(usages) or not costs:
            raise UnreadableProblem(
                f"node {at} has {len(costs)} costs and {len(usages)} usages, expected one each a strategy"
            )
    limit = problem.get("usage_limit")
    return Problem(
        node_costs=[_costs(costs) for costs in raw_costs],
        node_usages=[np.array(usages, np.int64) for usages in raw_usages],
        intervals=np.array(raw_intervals, np.int64).reshape(-1, 2),
        edges=np.array(raw_ends, np.int64).reshape(-1, 2),
        tables=tables,
        edge_tables=edge_tables,
        usage_limit=None if limit is None else int(limit),
    )


def _costs(numbers: list[int]) -> np.ndarray:
    try:
        return np.minimum(np.array(numbers, np.int64), FORBIDDEN)
    except OverflowError:
        return np.array([min(number, FORBIDDEN) for number in numbers], np.int64)
