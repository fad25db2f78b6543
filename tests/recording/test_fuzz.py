"""Random programs of documented calls agree with the CPU in each way of running them; a fault would show."""

from __future__ import annotations

import random

import pytest
import torch

from torch_pjrt.testing.fuzz.generate import depends_on_order, program
from torch_pjrt.testing.fuzz.judge import drawn, judge
from torch_pjrt.testing.fuzz.kinds import KINDS
from torch_pjrt.testing.fuzz.program import Program, Ref, Statement

PROGRAMS = 2  # of each kind; thousands by `hatch run fuzz-documented`


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(PROGRAMS))
@pytest.mark.parametrize("kind", KINDS)
def test_program_does_what_it_does_on_cpu(kind: str, seed: int) -> None:
    made = drawn(kind, seed)

    assert judge(made, "pjrt") is None, str(made)


def test_programs_are_drawn_again_alike() -> None:
    assert str(drawn("plain", 5)) == str(drawn("plain", 5))
    assert str(drawn("plain", 5)) != str(drawn("plain", 6))


def test_wrong_value_is_found() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x + (x.device.type == "pjrt")

    made = Program("plain", [torch.ones(3)], [Statement("wrong", wrong, (Ref(0),))])

    assert "values" in (judge(made, "pjrt") or "")


def test_write_that_is_missed_is_found() -> None:
    def forgetful(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) if x.device.type == "cpu" else x + 1

    made = Program("plain", [torch.ones(3)], [Statement("forgetful", forgetful, (Ref(0),))])

    assert (judge(made, "pjrt") or "").startswith("result 0")


def test_other_error_is_found() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        raise (ValueError if x.device.type == "cpu" else TypeError)("no")

    made = Program("plain", [torch.ones(3)], [Statement("picky", picky, (Ref(0),))])

    assert "TypeError" in (judge(made, "pjrt") or "")


def test_what_jumps_by_a_rounding_is_no_fault() -> None:
    x = torch.full((64,), 2.0, dtype=torch.float64)

    def jumps(x: torch.Tensor) -> torch.Tensor:
        return torch.floor(x - (4e-16 if x.device.type == "pjrt" else 0))

    assert judge(Program("plain", [x], [Statement("jumps", jumps, (Ref(0),))]), "pjrt") is None


def test_programs_have_the_length_that_is_asked_for() -> None:
    made = program(random.Random(0), "plain", 12, writes=0.3, errors=0.1, grad=False)

    assert len(made.statements) >= 12


def test_subnormal_numbers_are_no_fault() -> None:
    """XLA's code for the CPU takes them for 0."""
    divide = Statement("div", torch.div, (0.0, Ref(0)))
    tiny = torch.tensor([1e-310], dtype=torch.float64)

    assert judge(Program("plain", [tiny], [divide]), "pjrt") is None


WHOLE = torch.arange(12.0).view(3, 4)
OPEN = {
    "windows that overlap": [torch.arange(5.0).unfold(0, 3, 2)],
    "a part of itself": [WHOLE, WHOLE[:1]],
    "itself in another order": [WHOLE[:, :3], WHOLE[:, :3].t()],
}
SETTLED = {
    "itself": [WHOLE, WHOLE],
    "another part": [WHOLE[:1], WHOLE[1:]],
    "another tensor": [WHOLE, WHOLE.clone()],
    "a number": [WHOLE, 2.0],
    "nothing": [WHOLE[:0], WHOLE],
}


@pytest.mark.parametrize("case", [*OPEN, *SETTLED])
def test_writes_that_pytorch_leaves_open_are_not_drawn(case: str) -> None:
    given = (OPEN | SETTLED)[case]
    args = tuple(Ref(i) if isinstance(x, torch.Tensor) else x for i, x in enumerate(given))
    write = Statement("Tensor.add_", torch.Tensor.add_, args)

    assert depends_on_order(write, given) == (case in OPEN)
