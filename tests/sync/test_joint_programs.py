"""Tapes with operators that other processes take part in: as one program, part by part, and mixed.

Here one process stands for all, and a joint operator adds 1, so that values are known. What processes do
together is tested in `packages/spmd/tests/processes`. `TORCH_PJRT_TEST_JOINT` says how many random programs
to try (5).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import pytest
import torch

from torch_pjrt.errors import LaunchRefused, LostValue
from torch_pjrt.extend import (
    FunctionOp,
    Joint,
    JointAnswer,
    JointOp,
    client,
    counters,
    current,
    intern,
    record,
    run_pending,
    store,
    value_of,
)
from torch_pjrt.plugin import Slot

TOGETHER, COMPILE, APART = JointAnswer.TOGETHER, JointAnswer.COMPILE, JointAnswer.APART
SPLIT = JointAnswer.SPLIT
PROGRAMS = int(os.environ.get("TORCH_PJRT_TEST_JOINT", "5"))


def add_one(x: Any) -> Any:
    """By the other processes, of which there are none."""
    return [x + jax.lax.psum(1, "ranks")]


ADD_ONE = JointOp("add_one", add_one, ())
OF_OTHERS = JointOp("add_one of others", add_one, ())


class Scripted(Joint):
    """Gives these answers, and then the last of them; keeps what it was asked with."""

    def __init__(self, answers: Sequence[JointAnswer | Exception]) -> None:
        super().__init__("alone", [client().chip], "ranks")
        self.answers = list(answers)
        self.asked: list[tuple[str, bool]] = []
        self.alone_for = 0
        self.has_failed: list[bool] = []

    def propose(self, digest: str, is_ready: bool, first: Any) -> JointAnswer:
        self.asked.append((digest, is_ready))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return COMPILE if answer is TOGETHER and not is_ready else answer

    def have_compiled(self, digest: str, has_failed: bool) -> bool:
        self.has_failed.append(has_failed)
        return not has_failed

    def alone(self, node: Any) -> None:
        self.alone_for += 1

    def explained(self, error: Exception) -> Exception:
        return error

    def replaying(self, program: Any) -> None:
        self.asked.append((program.proposal[0], True))


class OfTwo(Scripted):
    """Knows two joints, each of one of the operators."""

    def __init__(self, answers: Sequence[JointAnswer | Exception], *own: Scripted) -> None:
        super().__init__(answers)
        self.own = own

    def of(self, nodes: Sequence[Any]) -> Joint:
        needed = {node.op is OF_OTHERS for node in nodes}
        return self if len(needed) > 1 else self.own[needed.pop()]


def add_jointly(x: torch.Tensor, joint: Joint, op: JointOp = ADD_ONE) -> torch.Tensor:
    """`x.add_(1)` by a joint operator."""
    value = value_of(x)
    signature = intern(op, ([Slot(0)],), {}, (value.spec,), (value.spec,), returns="list")
    current().joint = joint
    [made] = record(signature, [value], ())
    store(x, made)
    return x


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="pjrt")


def run_now() -> None:
    run_pending(current(), "a test")


# Random programs. All numbers are small and whole: every order of computing gives the same.


def random_program(seed: int, add: Callable[[torch.Tensor], object]) -> list[list[float]]:
    """What a program reads, now and at its end; `add` adds 1 in place."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    tensors = [torch.full((4,), float(i), device="pjrt") for i in range(3)]
    run_now()
    read: list[list[float]] = []
    for _ in range(choose.randint(6, 16)):
        a, b = choose.randrange(len(tensors)), choose.randrange(len(tensors))
        x, y = tensors[a], tensors[b]
        match choose.randrange(10):
            case 0 | 1:
                add(x)
            case 2:
                add(x[1:3])
            case 3:
                x.mul_(-1).clamp_(-50, 50)
            case 4:
                tensors.append((x + y * choose.randint(1, 3)).clamp(-50, 50))
            case 5:
                tensors.append((torch.rand(4, device="pjrt") * 8).floor())
            case 6:
                y[choose.randrange(4)] = choose.random() > 0.5
            case 7 if len(tensors) > 2:
                del tensors[a]
            case 8:
                read.append(x.tolist())
            case _:
                x += y.flip(0)
                x.clamp_(-50, 50)
    return read + [x.tolist() for x in tensors]


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs_give_the_same_however_they_are_run(seed: int):
    expected = random_program(seed, lambda x: x.add_(1))
    mixed = random.Random(seed + 1000)
    scripts = {
        "together": [TOGETHER],
        "apart": [APART],
        "mixed": [mixed.choice([TOGETHER, APART]) for _ in range(40)],
    }
    for name, answers in scripts.items():
        joint = Scripted(answers)

        seen = random_program(seed, lambda x, joint=joint: add_jointly(x, joint))

        assert seen == expected, name


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs_of_two_joints_give_the_same_however_they_are_run(seed: int):
    expected = random_program(seed, lambda x: x.add_(1))
    mixed = random.Random(seed + 2000)
    scripts = {
        "split": [SPLIT],
        "split later": [APART, SPLIT],
        "mixed": [mixed.choice([TOGETHER, APART, SPLIT]) for _ in range(40)],
    }
    for name, answers in scripts.items():
        own = [Scripted([mixed.choice([TOGETHER, APART]) for _ in range(40)]) for _ in range(2)]
        joint, chance = OfTwo(answers, *own), random.Random(seed)

        seen = random_program(
            seed, lambda x, j=joint, c=chance: add_jointly(x, j, c.choice([ADD_ONE, OF_OTHERS]))
        )

        assert seen == expected, name


# One by one.


def test_a_tape_whose_processes_agree_is_one_program():
    joint = Scripted([TOGETHER])
    x = ones(3)
    run_now()
    before = counters.programs_run
    y = add_jointly(x * 2, joint)
    z = add_jointly(y * 3, joint) + 1

    assert z.tolist() == [11.0] * 3
    assert counters.programs_run - before == 1
    assert joint.has_failed == [False] and joint.alone_for == 0


def test_numbers_are_inputs_from_the_start_and_so_not_in_what_processes_compare():
    joint = Scripted([TOGETHER])
    x = ones(3)
    run_now()
    for number in (2.5, 3.5):
        add_jointly(x * number, joint)
        y = add_jointly(x + number, joint)
        assert y.tolist() == [2 + number] * 3

    (first, was_ready), (second, is_ready) = joint.asked
    assert first == second
    assert (was_ready, is_ready) == (False, True)


def test_what_is_behind_a_collective_that_ran_alone_is_proposed_as_if_it_had_been_recorded_alone():
    def rest(x: torch.Tensor, w: torch.Tensor, joint: Joint) -> torch.Tensor:
        noise = torch.rand(3, device="pjrt")
        y = add_jointly((x + noise * 0) * 2, joint)
        w.sub_(y)
        return y

    read, not_read = Scripted([APART, TOGETHER]), Scripted([APART, TOGETHER])
    for joint in (read, not_read):
        torch.manual_seed(0)
        w, x = ones(3), torch.rand(3, device="pjrt") * 0
        run_now()
        add_jointly(x, joint)
        if joint is read:
            x.tolist()  # runs the first alone
        y = rest(x, w, joint)
        del x
        assert [w.tolist(), y.tolist()] == [[-2.0] * 3, [3.0] * 3]

    assert read.asked[1][0] == not_read.asked[1][0]


def test_parameters_are_donated_in_the_part_that_comes_last():
    joint = Scripted([APART])
    w = ones(1000)
    run_now()
    before = counters.donated
    gradient = add_jointly(w * 2, joint)
    w.sub_(gradient)
    run_now()

    assert counters.donated - before >= 1
    assert w[0].item() == -2.0


def test_a_tape_of_which_nothing_is_wanted_is_asked_about_all_the_same():
    joint = Scripted([TOGETHER])
    x = add_jointly(ones(3) * 2, joint)
    del x
    run_now()

    assert len(joint.asked) == 1
    assert (ones(2) + 1).tolist() == [2.0, 2.0]


def test_a_tape_on_which_no_joint_operator_came_is_an_ordinary_one():
    joint = Scripted([APART])
    x = ones(3) * 4
    current().joint = joint

    assert x.tolist() == [4.0] * 3
    assert joint.asked == []


def test_a_split_tape_is_a_program_for_each_stretch_of_one_joint_and_writes_in_place_in_the_last():
    own = Scripted([TOGETHER]), Scripted([TOGETHER])
    joint = OfTwo([SPLIT], *own)
    x, w = ones(3), ones(1000)
    run_now()
    before, donated = counters.programs_run, counters.donated
    add_jointly(add_jointly(x, joint), joint)
    add_jointly(x, joint, OF_OTHERS)
    add_jointly(x, joint)
    w.sub_(x[0])
    run_now()

    assert counters.programs_run - before == 3
    assert [len(one.asked) for one in own] == [2, 1]
    assert counters.donated - donated >= 1
    assert [x.tolist(), w[0].item()] == [[5.0] * 3, -4.0]


def test_what_is_left_of_one_joint_is_asked_of_that_alone():
    own = Scripted([TOGETHER]), Scripted([TOGETHER])
    joint = OfTwo([APART], *own)
    x = ones(3)
    run_now()
    add_jointly(add_jointly(x, joint), joint, OF_OTHERS)
    run_now()

    assert len(joint.asked) == 1
    assert own[0].asked == []
    assert len(own[1].asked) == 1
    assert x.tolist() == [3.0] * 3


def test_where_a_split_tape_fails_what_came_before_is_there():
    own = Scripted([TOGETHER]), Scripted([Refused("no")])
    joint = OfTwo([SPLIT], *own)
    x, y = ones(3), ones(3)
    run_now()
    first = add_jointly(x, joint) * 2
    add_jointly(y, joint, OF_OTHERS)
    beside = first + 1
    with pytest.raises(Refused):
        run_now()

    assert [t.tolist() for t in (x, first, beside)] == [[2.0] * 3, [4.0] * 3, [5.0] * 3]
    with pytest.raises(LostValue, match="Refused"):
        y.tolist()


# What goes wrong.


class Refused(LaunchRefused):
    pass


@pytest.mark.parametrize("answers", [[Refused("no")], [APART, Refused("no")]])
def test_where_processes_cannot_agree_what_needs_none_of_them_is_there(answers: list[Any]):
    joint = Scripted(answers)
    first = add_jointly(ones(3), joint) if len(answers) > 1 else ones(3) + 1
    before = ones(3) * 5
    x = add_jointly(before * 2, joint)
    after = x + 1
    beside = before - 1
    y = add_jointly(x * 7, joint)
    with pytest.raises(Refused):
        y.tolist()

    assert [t.tolist() for t in (first, before, beside)] == [[2.0] * 3, [5.0] * 3, [4.0] * 3]
    for lost in (x, after, y):
        with pytest.raises(LostValue, match="Refused"):
            lost.tolist()
    assert (ones(2) + 1).tolist() == [2.0, 2.0]


def _refuse(x: Any) -> Any:
    raise ValueError("this operator cannot be lowered")


def not_lowered(x: torch.Tensor) -> torch.Tensor:
    value = value_of(x)
    signature = intern(
        FunctionOp("bad", _refuse), (Slot(0),), {}, (value.spec,), (value.spec,), returns="list"
    )
    y = torch.empty_like(x)
    store(y, record(signature, [value], ())[0])
    return y


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_program_that_cannot_be_made_is_told_to_the_others_and_runs_part_by_part(is_behind: bool):
    joint = Scripted([TOGETHER])
    x = ones(3)
    bad = not_lowered(x) if not is_behind else None
    y = add_jointly(x * 2, joint)
    if is_behind:
        bad = not_lowered(y)
    with pytest.raises(ValueError, match="cannot be lowered"):
        run_now()

    assert joint.has_failed[0]
    assert x.tolist() == [1.0] * 3
    if is_behind:
        assert y.tolist() == [3.0] * 3
    for lost in [bad] if is_behind else [bad, y]:
        assert lost is not None
        with pytest.raises(LostValue):
            lost.tolist()


@pytest.fixture(autouse=True)
def nothing_is_pending() -> Iterator[None]:
    run_now()
    yield
