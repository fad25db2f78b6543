"""Files of tests, a child process each, side by side: a crash ends its child and nothing else.

What follows a crash runs in a fresh child. A test that crashed is tried again alone: one that passes then
was hit by what ran before it. One that takes long is tried again with programs compiled in the ordinary way,
and so is one that fails alone, too: what is compiled quickly may round a value otherwise in each place where
it is used.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_pjrt.testing.child import Child, environment
from torch_pjrt.testing.pytorch_suite.outcomes import Outcome, Result

# After so many a child makes room for a fresh one: programs stay in memory.
TESTS_OF_A_CHILD = 300
_LOADING_S = 300.0
_QUICK_S = 120.0  # what is compiled quickly and takes longer is compiled in the ordinary way

Choose = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """A file whose tests could not be listed, and why."""

    file: str
    why: str


def run_all(
    files: Sequence[Path],
    choose: Choose,
    known: Collection[str],
    timeout_s: float,
    n_workers: int,
    tests_of_a_child: int = TESTS_OF_A_CHILD,
) -> Iterator[Result | NotLoaded]:
    """The results of the tests of `files` that `choose` picks and that are not `known`, as they come."""
    units: queue.SimpleQueue[tuple[Path, list[str]]] = queue.SimpleQueue()
    results: queue.SimpleQueue[Result | NotLoaded | None] = queue.SimpleQueue()
    for file in files:
        listed = _listed(file)
        if isinstance(listed, NotLoaded):
            yield listed
            continue
        ids = [f"{file.stem}::{name}" for name in listed]
        waiting = [t.partition("::")[2] for t in choose(ids) if t not in known]
        for i in range(0, len(waiting), tests_of_a_child):
            units.put((file, waiting[i : i + tests_of_a_child]))
    shepherds = [
        threading.Thread(target=_shepherd, args=(units, results, timeout_s), daemon=True)
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


def _shepherd(
    units: queue.SimpleQueue[tuple[Path, list[str]]],
    results: queue.SimpleQueue[Result | NotLoaded | None],
    timeout_s: float,
) -> None:
    try:
        while True:
            try:
                file, names = units.get_nowait()
            except queue.Empty:
                return
            for result in _run_unit(file, names, timeout_s):
                results.put(result)
    finally:
        results.put(None)


def _run_unit(file: Path, names: list[str], timeout_s: float) -> Iterator[Result | NotLoaded]:
    waiting = list(names)
    while waiting:
        ended_its_child: Result | None = None
        for result in _run_until_crash(file, tuple(waiting), timeout_s):
            if isinstance(result, NotLoaded):
                yield result
                return
            waiting.pop(0)
            if result.outcome in (Outcome.CRASHED, Outcome.HUNG):
                ended_its_child = result
            else:
                failed = result.outcome is Outcome.FAILED
                yield _compiled_well(file, result, timeout_s) if failed else result
        if ended_its_child is not None:  # a child that hung is gone by now
            yield _tried_alone(file, ended_its_child, timeout_s)


def _compiled_well(file: Path, result: Result, timeout_s: float) -> Result:
    """A test that failed: alone, and if it fails there, too, once more compiled in the ordinary way."""
    name = result.test.partition("::")[2]
    for quick in (True, False):
        [again] = _run_until_crash(file, [name], timeout_s, quick=quick)
        if isinstance(again, NotLoaded):
            return result
        if quick and again.outcome is not Outcome.FAILED:
            return Result(result.test, Outcome.FAILED, f"not alone ({again.outcome}): {result.why}")
    return again if again.outcome is Outcome.PASSED else result


def _tried_alone(file: Path, result: Result, timeout_s: float) -> Result:
    """A test that crashed or hung, once more in a child of its own, compiled in the ordinary way."""
    name = result.test.partition("::")[2]
    [alone] = _run_until_crash(file, [name], timeout_s, quick=False)
    if isinstance(alone, NotLoaded):
        return result
    if result.outcome is Outcome.CRASHED and alone.outcome is not Outcome.CRASHED:
        return Result(result.test, Outcome.CRASHED, f"not alone ({alone.outcome}): {result.why}")
    return alone


def _run_until_crash(
    file: Path, names: Sequence[str], timeout_s: float, *, quick: bool = True
) -> Iterator[Result | NotLoaded]:
    """Results in the order of `names`; the last one is of the test that ended the child, if any did."""
    child = _started(quick=quick)
    timeout_s = min(timeout_s, _QUICK_S) if quick else timeout_s
    try:
        child.ask({"list": str(file)})
        try:
            listed = child.answer(_LOADING_S)
        except TimeoutError:
            listed = {"error": "it took too long to load"}
        if listed is None or "error" in listed:
            yield NotLoaded(file.stem, child.how_it_ended() if listed is None else listed["error"])
            return
        child.ask({"run": list(names)})
        for name in names:
            test = f"{file.stem}::{name}"
            try:
                answer = child.answer(timeout_s)
                if answer is not None:
                    answer = child.answer(timeout_s)
            except TimeoutError:
                yield Result(test, Outcome.HUNG, f"over {timeout_s:g} s", timeout_s)
                return
            if answer is None:
                how = child.how_it_ended()
                print(f"{test}\n{child.log()}", file=sys.stderr, flush=True)
                yield Result(test, Outcome.CRASHED, how)
                return
            yield Result(test, Outcome(answer["outcome"]), answer["why"], answer["seconds"])
    finally:
        child.stop()


def _listed(file: Path) -> list[str] | NotLoaded:
    child = _started()
    try:
        child.ask({"list": str(file)})
        answer = child.answer(_LOADING_S)
        if answer is None:
            return NotLoaded(file.stem, child.how_it_ended())
    except TimeoutError:
        return NotLoaded(file.stem, "it took too long to load")
    finally:
        child.stop()
    return answer["tests"] if "tests" in answer else NotLoaded(file.stem, answer["error"])


def _started(*, quick: bool = True) -> Child:
    # PyTorch's word for devices like ours; those for the CPU say what a failure means.
    devices = "privateuse1,cpu"
    return Child(
        ["-m", "torch_pjrt.testing.pytorch_suite.worker"],
        environment(quick=quick, PYTORCH_TESTING_DEVICE_ONLY_FOR=devices),
    )
