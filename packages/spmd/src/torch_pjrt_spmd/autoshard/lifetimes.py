"""When values are in memory, and which are: fused ones are not.

Time is counted in operators. XLA computes what each element has for itself within the operators around it, so
such a value is in memory only where a product, a gather or the like reads it, where several operators do that
would have to compute something expensive again, or where it is a result. What it is computed of is read when
these operators run. A view is its base. What replaces an input takes the memory of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from torch_pjrt_spmd.autoshard.letters import Letters
from torch_pjrt_spmd.autoshard.operators import Operator, Operators
from torch_pjrt_spmd.autoshard.recording import Recorded
from torch_pjrt_spmd.autoshard.repeats import Run, Tied


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Of values, views being their bases.

    base      of each value. stored: those that have memory of their own.
    intervals of each stored value: the times [begin, end) at which it is there.
    n_times   how many there are. copies: of values that are in memory twice, the times of the other one.
    """

    base: Mapping[int, int]
    stored: frozenset[int]
    intervals: Mapping[int, tuple[int, int]]
    n_times: int
    copies: Mapping[int, tuple[int, int]]


def n_bytes(operators: Operators, value: int) -> int:
    """Of a whole value."""
    spec = operators.specs[value]
    return prod(spec.shape) * spec.dtype.itemsize


def lifetimes_of(operators: Operators, recorded: Recorded, on_cpus: bool = False) -> Lifetimes:
    """Of all values of a graph.

    on_cpus   sums read what they add up from memory; convolutions read copies with the channels last.
    """
    ops = operators.all
    base: dict[int, int] = {-i - 1: -i - 1 for i in range(len(recorded.inputs))}
    maker: dict[int, tuple[int, int]] = {}
    readers: dict[int, list[int]] = {}
    for t, op in enumerate(ops):
        for v in op.inputs if not _is_view(op) else ():
            readers.setdefault(base[v], []).append(t)
        for k, v in enumerate(op.outputs):
            base[v] = base[op.inputs[0]] if _is_view(op) else v
            maker[v] = t, k
    stays = {base[v] for v in recorded.results}
    replaced = {base[v] for v in recorded.updated.values()}
    stored = set()
    for v, (t, k) in maker.items():
        of = [ops[r].letters for r in readers.get(v, ())]
        if (
            base[v] == v
            and v not in replaced
            and (v in stays or _is_stored(ops[t], k, of, on_cpus))
        ):
            stored.add(v)
    last = _last_reads(ops, base, readers, stored, on_cpus)
    n = len(ops)
    intervals = {
        v: (maker[v][0], n if v in stays else max(last.get(v, 0), maker[v][0]) + 1) for v in stored
    }
    _reuse(operators, base, intervals)
    for v in (-i - 1 for i in range(len(recorded.inputs))):
        intervals[v] = (0, n)
        stored.add(v)
    for v, (first, after) in _parts_that_are_read(operators, base).items():
        base[v] = v
        intervals[v] = first, after
        stored.add(v)
    copies = _read_by_convolutions(operators, base) if on_cpus else {}
    return Lifetimes(base, frozenset(stored), intervals, n, copies)


def _is_view(op: Operator) -> bool:
    return op.letters.is_view and len(op.inputs) == 1


def _is_fused(op: Operator, k: int) -> bool:
    """Whether a result may be computed by who reads it: no product, and no sum itself."""
    letters = op.letters
    shown = {x for dim in letters.outputs[k] for x in dim}
    return not letters.is_heavy and all(s.letters <= shown for s in letters.sums)


def _is_stored(op: Operator, k: int, readers: Sequence[Letters], on_cpus: bool) -> bool:
    if not readers:
        return False
    if not _is_fused(op, k) or any(x.is_heavy or (on_cpus and x.sums) for x in readers):
        return True
    return len(readers) > 1 and op.letters.is_expensive and not op.letters.sums


def _last_reads(
    ops: Sequence[Operator],
    base: Mapping[int, int],
    readers: Mapping[int, Sequence[int]],
    stored: set[int],
    on_cpus: bool,
) -> dict[int, int]:
    """When each value is read last. What is not in memory is computed by who reads it, of what it is made of.

    Of values in memory that are as soon computed as read, readers that are fused compute them again, too.
    """
    last: dict[int, int] = {}
    reads: dict[int, int] = {}  # of each operator: when the last one runs that it is fused into
    for t in range(len(ops) - 1, -1, -1):
        op = ops[t]
        if _is_view(op):
            continue
        fused: list[int] = []
        for k, v in enumerate(op.outputs):
            of = readers.get(v, ())
            if not _is_fused(op, k):
                continue
            if v not in stored:
                fused += of
            elif not op.letters.is_expensive:
                simple = (r for r in of if not ops[r].letters.is_heavy)
                fused += [r for r in simple if on_cpus or not ops[r].letters.sums]
        reads[t] = max([t, *(reads[r] for r in fused)])
        for v in op.inputs:
            last[base[v]] = max(last.get(base[v], 0), reads[t])
    return last


def _reuse(
    operators: Operators, base: Mapping[int, int], intervals: dict[int, tuple[int, int]]
) -> None:
    """Have results of what is computed for each element take that of an input that is read last then."""
    for t, op in enumerate(operators.all):
        if op.letters.is_heavy or _is_view(op):
            continue
        free = {base[v] for v in op.inputs if intervals.get(base[v], (0, 0))[1] == t + 1}
        for k, v in enumerate(op.outputs):
            if v in intervals and _is_fused(op, k):
                size = n_bytes(operators, v)
                taken = next((u for u in sorted(free) if n_bytes(operators, u) == size), None)
                if taken is not None:
                    free.discard(taken)
                    intervals[taken] = intervals[taken][0], t


def _parts_that_are_read(
    operators: Operators, base: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Parts of values that products or the like read: of each view when it is copied, and until when."""
    found: dict[int, tuple[int, int]] = {}
    for t, op in enumerate(operators.all):
        if op.letters.is_heavy:
            for v in op.inputs:
                if base[v] != v and n_bytes(operators, v) < n_bytes(operators, base[v]):
                    found[v] = found.get(v, (t, t))[0], t + 1
    return found


def _read_by_convolutions(
    operators: Operators, base: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for t, op in enumerate(operators.all):
        if op.name.startswith("aten.convolution"):
            for v in op.inputs:
                found[base[v]] = found.get(base[v], (t, t))[0], t + 1
    return found


def kept_times(operators: Operators, lifetimes: Lifetimes, runs: Sequence[Run]) -> np.ndarray:
    """The times that are looked at: of each run of layers those of the one layer where most is in memory."""
    n = lifetimes.n_times
    in_use = np.zeros(n + 1)
    for v, (begin, end) in lifetimes.intervals.items():
        size = n_bytes(operators, v)
        in_use[begin] += size
        in_use[end] -= size
    in_use = np.cumsum(in_use)[:n]
    kept = np.ones(n, bool)
    for run in runs:
        of_layers = in_use[run.start : run.start + run.period * run.copies].reshape(run.copies, -1)
        fullest = int(of_layers.max(axis=1).argmax())
        kept[run.start : run.start + run.period * run.copies] = False
        begin = run.start + fullest * run.period
        kept[begin : begin + run.period] = True
    return np.flatnonzero(kept)


def of_classes(
    operators: Operators, lifetimes: Lifetimes, tied: Tied, times: np.ndarray
) -> dict[tuple[int, int], np.ndarray]:
    """Of the results of each class (its number, which result) how many are there at each of the times."""
    found: dict[tuple[int, int], np.ndarray] = {}
    n = lifetimes.n_times
    for number, members in tied.operators.items():
        for k in range(len(operators.all[members[0]].outputs)):
            change = np.zeros(n + 1, np.int32)
            for i in members:
                v = operators.all[i].outputs[k]
                if v in lifetimes.stored:
                    begin, end = lifetimes.intervals[v]
                    change[begin] += 1
                    change[end] -= 1
                if v in lifetimes.copies:
                    begin, end = lifetimes.copies[v]
                    change[begin] += 1
                    change[end] -= 1
            alive = np.cumsum(change)[times]
            if alive.any():
                found[number, k] = alive
    return found
