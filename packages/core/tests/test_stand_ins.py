"""What stands in for a function of PyTorch's does so on one thread, and leaves nothing behind."""

from __future__ import annotations

import ast
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from hangs import HANGS_S
from torch_pjrt.stand_ins import StandIn

ROOT = Path(__file__).parents[3]


def square(x: int) -> int:
    return x * x


def negated(original: Callable[[int], int], x: int) -> int:
    return -original(x)


def in_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_it_stands_in_on_its_thread_alone() -> None:
    owner = SimpleNamespace(square=square)
    stand_in = StandIn(owner, "square", negated)

    with stand_in.in_force():
        here, there = owner.square(3), in_thread(lambda: owner.square(3))

    assert (here, there, owner.square(3)) == (-9, 9, 9)


def test_blocks_that_overlap_on_two_threads_leave_nothing_behind() -> None:
    owner = SimpleNamespace(square=square)
    stand_in = StandIn(owner, "square", negated)
    entered, left = threading.Event(), threading.Event()

    def second() -> int:
        with stand_in.in_force():
            entered.set()
            assert left.wait(HANGS_S)
            return owner.square(3)

    with ThreadPoolExecutor(1) as pool:
        with stand_in.in_force():
            found = pool.submit(second)
            assert entered.wait(HANGS_S)
        first_after = owner.square(3)
        left.set()

        assert (first_after, found.result(), owner.square(3)) == (9, -9, 9)


def test_blocks_within_each_other_stand_in_once() -> None:
    owner = SimpleNamespace(square=square)
    stand_in = StandIn(owner, "square", negated)
    with stand_in.in_force():
        with stand_in.in_force():
            assert owner.square(3) == -9
        assert owner.square(3) == -9
    assert owner.square(3) == 9


def test_it_stands_in_also_where_somebody_else_has_put_another_function() -> None:
    owner = SimpleNamespace(square=square)
    stand_in = StandIn(owner, "square", negated)
    with stand_in.in_force():
        pass
    first = owner.square
    owner.square = lambda x: first(x) + 1
    with stand_in.in_force():
        assert owner.square(3) == -10
    assert owner.square(3) == 10
    owner.square = first
    with stand_in.in_force():
        assert owner.square(3) == -9


def test_what_this_pytorch_lacks_is_left_alone() -> None:
    for owner in (None, SimpleNamespace()):
        with StandIn(owner, "square", negated).in_force():
            assert not hasattr(owner, "square")


def test_a_static_method_is_called_of_the_class_and_of_its_objects() -> None:
    class Owner:
        @staticmethod
        def square(x: int) -> int:
            return x * x

    with StandIn(Owner, "square", negated).in_force():
        assert (Owner.square(3), Owner().square(3)) == (-9, -9)
    assert (Owner.square(3), Owner().square(3)) == (9, 9)


def test_eight_threads_at_random_see_their_own() -> None:
    owner = SimpleNamespace(square=square)
    stand_ins = [StandIn(owner, "square", negated) for _ in range(2)]

    def works(seed: int) -> list[tuple[int, int]]:
        draw, wrong = random.Random(seed), []
        for _ in range(200):
            depth = draw.randrange(3)
            with stand_ins[0].in_force() if depth else _nothing():
                time.sleep(draw.random() / 1e5)
                with stand_ins[1].in_force() if depth == 2 else _nothing():
                    found = owner.square(3)
            if found != (9, -9, 9)[depth]:
                wrong.append((depth, found))
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert [w for w in pool.map(works, range(8)) if w] == []
    assert owner.square(3) == 9


def _nothing() -> Any:
    return torch.no_grad()


def test_no_package_replaces_functions_for_a_while() -> None:
    """By `unittest.mock`: all threads would meet the replacement."""
    found = []
    for path in ROOT.glob("packages/*/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [f"{node.module}"] if isinstance(node, ast.ImportFrom) else []
            if any(n.startswith("unittest") for n in names) and "testing" not in path.parts:
                found.append(path)
    assert found == []
