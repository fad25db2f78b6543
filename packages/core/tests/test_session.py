"""The session owns what a process has once, and survives a fork. With a device: tests/device."""

from __future__ import annotations

import os
import threading

import pytest

from torch_pjrt.caches import Cache
from torch_pjrt.run import sync
from torch_pjrt.session import Session, session


def test_what_is_owned_is_given_back():
    own = Session()
    things: list[int] = own.own("things", [])

    assert own.owned == {"things": things}
    assert own.own("things", []) is things  # its module is loaded again
    with pytest.raises(AssertionError, match="things"):
        own.own("things", {})


def test_once_is_once():
    own = Session()

    assert [own.once("a"), own.once("b"), own.once("a")] == [True, True, False]


def test_every_cache_belongs_to_the_session():
    cache: Cache[int, int] = Cache("of this test", most=2)

    assert cache in session.caches


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_the_lock_that_another_thread_held():
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with sync.one_at_a_time():
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        with sync.one_at_a_time():
            os._exit(7)
    done.set()
    thread.join()

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
