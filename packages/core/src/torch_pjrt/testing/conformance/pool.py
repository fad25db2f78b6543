"""Worker processes that check cases, one operator and dtype at a time.

A case may end its process or never end: each worker is watched, and such a case is tried once more in
the ordinary way before it counts as failed.

From disk, some units run in one process, and are then checked in another, which loads the programs that the
first has compiled. There a case that ends its process has failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import queue
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import groupby, islice

from torch_pjrt.testing.child import Child, answers, environment
from torch_pjrt.testing.conformance import gaps
from torch_pjrt.testing.conformance.cases import Case
from torch_pjrt.testing.conformance.check import Result, check
from torch_pjrt.testing.current_test import find_quickly

_UNITS = 60  # after so many, a worker makes room for a fresh one: programs stay in memory
_UNITS_FROM_DISK = 30  # that a pair of processes checks
_UNCOMPARED = "uncompared"  # the argument of a worker that compares nothing
_FAST_S, _ORDINARY_S = 40, 3600  # how long a case may take
_SLOW_WHEN_FAST = ("max_pool2d_with_indices_backward", "nn.functional.max_pool2d")

Units = queue.SimpleQueue[list[Case]]
Results = queue.SimpleQueue[Result | None]


def check_all(
    cases: Iterable[Case], device: str, n_workers: int, *, from_disk: bool = False
) -> Iterator[Result]:
    """The results of all cases, as they come."""
    units: Units = queue.SimpleQueue()
    for _, unit in groupby(cases, key=lambda case: (case.operator, case.dtype)):
        units.put(list(unit))
    results: Results = queue.SimpleQueue()
    target = _shepherd_of_pairs if from_disk else _shepherd
    shepherds = [
        threading.Thread(target=target, args=(units, results, device), daemon=True)
        for _ in range(n_workers)
    ]
    for thread in shepherds:
        thread.start()
    running = n_workers
    while running:
        result = results.get()
        if result is None:
            running -= 1
        else:
            yield result


def _waiting(units: Units) -> Iterator[list[Case]]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield units.get_nowait()


def _shepherd(units: Units, results: Results, device: str) -> None:
    """Feed units to a worker, and get another one when it ends, hangs or has done enough."""
    worker = _Worker(device)
    try:
        for unit in _waiting(units):
            for result in worker.check(unit):
                results.put(result)
    finally:
        worker.stop()
        results.put(None)


def _shepherd_of_pairs(units: Units, results: Results, device: str) -> None:
    """Feed units to a worker that compiles, then to one that loads."""
    try:
        while some := list(islice(_waiting(units), _UNITS_FROM_DISK)):
            with tempfile.TemporaryDirectory() as folder:
                # Neither tries again: a program that was compiled in the ordinary way is another one.
                compiles, loads = (
                    _Worker(device, folder, tries_again=False, compares=compares)
                    for compares in (False, True)
                )
                for unit in some:
                    for _ in compiles.check(unit):
                        pass
                compiles.stop()
                for unit in some:
                    for result in loads.check(unit):
                        results.put(result)
                        if result.compiled:  # and so has set up what a process that loads has to
                            loads.done = _UNITS
                loads.stop()
    finally:
        results.put(None)


@dataclass(slots=True)
class _Worker:
    """A process that checks cases.

    programs     the folder in which it keeps programs; none by default.
    tries_again  whether a case that ends it, or takes long, is tried in the ordinary way.
    compares     whether it compares with the CPU; else it runs the cases on the device alone.
    """

    device: str
    programs: str = ""
    tries_again: bool = True
    compares: bool = True
    fast: bool = True
    child: Child | None = None
    done: int = 0

    def check(self, unit: list[Case]) -> Iterator[Result]:
        waiting = list(unit)
        if self.fast and unit[0].operator in _SLOW_WHEN_FAST:
            self._start_over(fast=False)
        while waiting:
            child = self._started()
            child.ask([astuple(case) for case in (waiting if self.fast else waiting[:1])])
            while waiting:
                answer = self._answer(child)
                if isinstance(answer, str) and self.fast and self.tries_again:
                    self._start_over(fast=False)
                    break
                result = answer
                if isinstance(result, str):
                    self.stop()
                    result = Result(*astuple(waiting[0]))
                    result.fail(str(answer))
                waiting.pop(0)
                yield result
                if not self.fast or result is not answer:
                    break
        if not self.fast:
            self._start_over(fast=True)
        self.done += 1
        if self.done >= _UNITS:
            self.stop()

    def _answer(self, child: Child) -> Result | str:
        """The next result, or why there is none."""
        seconds = _FAST_S if self.fast and self.tries_again else _ORDINARY_S
        try:
            answer = child.answer(seconds)
        except TimeoutError:
            return f"it took over {seconds} s"
        return f"its process ended: {child.how_it_ended()}" if answer is None else Result(**answer)

    def _start_over(self, *, fast: bool) -> None:
        self.stop()
        self.fast = fast

    def _started(self) -> Child:
        if self.child is None:
            self.child = Child(
                ["-m", __name__, self.device, *([] if self.compares else [_UNCOMPARED])],
                environment(quick=self.fast, programs=self.programs),
            )
            self.done = 0
        return self.child

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()
            self.child = None


def _work(device: str, how: str = "") -> None:
    """The worker: a list of cases a line comes in, a result a line goes out."""
    faulthandler.enable()
    find_quickly()
    out = answers()
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        for operator, dtype, kind in json.loads(line):
            case = Case(operator, dtype, kind)
            compares = how != _UNCOMPARED
            result = check(case, device, gaps.tolerance(case), compares=compares)
            out.write(json.dumps(result.as_dict()) + "\n")
            out.flush()


if __name__ == "__main__":
    _work(*sys.argv[1:])
