"""FSDP2, FSDP1 and state dicts, unmodified, do as they do by gloo on CPU tensors; a step is one program."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from several import run

# How many programs the last step is: one, but where each rank updates shapes of its own (this is the
# second), and where gradients go to the host.
EVERY_DAY = {
    "FSDP2, uneven": 2,
    "FSDP1, wrapped by layer": 1,
}
OTHERS = {
    "FSDP2, offloaded": 3,
    "states, FSDP2 to FSDP2, whole, on the host": 1,
    "FSDP2, prefetched": 1,
    "FSDP2, scaled": None,
    "FSDP1, tied": 2,
    "FSDP1, offloaded, scaled": None,
    "FSDP1, offloaded, accumulated, original parameters": 3,
}


@dataclass(frozen=True)
class Seen:
    """What a rank printed of a case."""

    name: str
    rank: int
    expected: Any
    seen: Any
    programs: list[int]

    @property
    def is_right(self) -> bool:
        if not isinstance(self.expected, list) or not isinstance(self.seen, list):
            return False
        return self.seen == pytest.approx(self.expected, rel=1e-5, abs=1e-6)


def _cases(n: int, *words: str) -> list[Seen]:
    cases = []
    for rank, ended in enumerate(run("sharded_with_gloo.py", n, *words, timeout_s=900)):
        assert ended.status == 0, ended.err
        lines = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
        cases += [Seen(x["case"], rank, x["cpu"], x["pjrt"], x["programs"]) for x in lines]
    return cases


def _wrong(cases: list[Seen]) -> list[Seen]:
    return [case for case in cases if not case.is_right]


@pytest.mark.parametrize(
    "some",
    [EVERY_DAY, pytest.param(OTHERS, marks=pytest.mark.slow)],
    ids=("every day", "others"),
)
def test_some_train_as_by_gloo_in_few_programs(some: dict[str, int | None]):
    cases = _cases(2, *some)

    assert _wrong(cases) == []
    steps = {case.name: case.programs[-1] if case.programs else None for case in cases}
    assert steps == some


# Of the cases one in six: all of them take 13 minutes on four processes and two cores.
PARTS = 6


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("part", range(PARTS))
def test_all_train_as_by_gloo(part: int, n: int):
    cases = _cases(n, "--part", f"{part}/{PARTS}")

    assert _wrong(cases) == []
    assert len(cases) > n * 12
