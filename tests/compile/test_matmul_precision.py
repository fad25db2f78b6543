"""`torch.set_float32_matmul_precision` is the precision of products in the programs made under it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from fixture_types import Count
from torch_pjrt.compile import programs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def stablehlo(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs made from now on, as text."""
    made: list[str] = []
    client = programs.client()
    original = type(client).compile

    def compile_(self: object, function: object, arguments: object, *rest: object) -> object:
        import jax

        made.append(jax.jit(function).lower(*arguments).as_text())  # type: ignore[arg-type, misc]
        return original(client, function, arguments, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(type(client), "compile", compile_)
    programs.forget_programs()
    return made


def precisions(programs: list[str]) -> list[str]:
    return [line for line in "\n".join(programs).splitlines() if "precision" in line]


@pytest.mark.parametrize(
    ("name", "expected"), [("highest", "HIGHEST"), ("high", "HIGH"), ("medium", "DEFAULT")]
)
def test_products_and_convolutions_carry_it(name: str, expected: str, stablehlo: list[str]) -> None:
    torch.set_float32_matmul_precision(name)
    x, image = torch.ones(3, 3, device="pjrt"), torch.ones(1, 1, 5, 5, device="pjrt")

    _ = (x @ x).tolist(), torch.conv2d(image, image[..., :3, :3]).tolist()

    found = [set(re.findall("HIGHEST|HIGH|DEFAULT", line)) for line in precisions(stablehlo)]
    assert len(found) == 2
    assert all(words == {expected} for words in found)


def test_products_of_16_bits_do_not(stablehlo: list[str]) -> None:
    x = torch.ones(3, 3, device="pjrt", dtype=torch.bfloat16)

    (x @ x).tolist()

    assert stablehlo
    assert "HIGH" not in stablehlo[-1]


def test_a_change_makes_a_new_program_and_the_way_back_does_not(compiled: Count) -> None:
    x = torch.ones(3, 3).to("pjrt")

    counts = []
    for name in ("highest", "medium", "highest", "medium"):
        torch.set_float32_matmul_precision(name)
        (x @ x).tolist()
        counts.append(compiled())

    assert counts == [1, 2, 2, 2]


def test_what_was_recorded_before_a_change_keeps_its_precision(stablehlo: list[str]) -> None:
    torch.set_float32_matmul_precision("highest")
    x = torch.ones(3, 3, device="pjrt")
    product = x @ x

    torch.set_float32_matmul_precision("medium")
    product.tolist()

    assert "HIGHEST" in stablehlo[-1]
