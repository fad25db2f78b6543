"""When one process goes wrong, the others end in time, and say which one and why; none is aborted."""

from __future__ import annotations

import pytest
from fault_cases import WAYS, Ended, run

from hangs import SLACK_S

LIMIT_S = 5.0
HANGS = ("SIGSTOP", "sleeps", "loops")
# What is said of the faulty process.
WORDS = {
    "_exit": "is gone: killed, or crashed without an error of Python's",
    "SIGKILL": "is gone: killed, or crashed without an error of Python's",
    "SIGSEGV": "is gone: killed, or crashed without an error of Python's",
    "raises": "has failed: Mishap: the disk is full",
    "exits": "has ended",
    "SIGSTOP": "is stopped (SIGSTOP, or a debugger)",
    "sleeps": "did not come within 5 s",
    "loops": "did not come within 5 s",
}
EVERY_DAY = [("SIGKILL", 0)]
OTHERS = [(how, faulty) for how in WAYS for faulty in (0, 4) if (how, faulty) not in EVERY_DAY]


def _check(how: str, faulty: int) -> None:
    ended = run(how, faulty, LIMIT_S)
    limit = LIMIT_S if how in HANGS else 0.0
    for place in ("waiting", "collective"):
        one = ended[place]
        said = f"{how} of rank {faulty}, {place}: {one.seconds:.1f} s\n{one.err[-3000:]}"
        assert one.status in (1, 75), said
        assert one.seconds < limit + SLACK_S, said
        assert f"ank {faulty} (" in one.err and "process " in one.err, said
        assert _is_explained(one, how, faulty), said
    alone, at_exit = ended["alone"], ended["exit"]
    assert alone.status == 0 and "END alone" in alone.out, alone.err[-3000:]
    assert at_exit.status == 0 and at_exit.seconds < SLACK_S, at_exit.err[-3000:]


def _is_explained(one: Ended, how: str, faulty: int) -> bool:
    if WORDS[how] in one.err:
        return True
    if how in HANGS and one.place == "collective":  # it lives, and may yet come
        return "cannot be interrupted" in one.err
    keeps_store = faulty == 0 and "The run's store" in one.err
    return keeps_store and how in ("_exit", "SIGKILL", "SIGSEGV", "SIGSTOP")


@pytest.mark.parametrize(("how", "faulty"), EVERY_DAY)
def test_the_others_name_a_process_that_goes_wrong(how: str, faulty: int):
    _check(how, faulty)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "faulty"), OTHERS)
def test_the_others_name_a_process_that_goes_wrong_in_other_ways(how: str, faulty: int):
    _check(how, faulty)
