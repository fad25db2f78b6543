"""Equality of our classes never compares tensors or arrays, which gives another one and no bool.

Python before 3.13 hides it where both sides are the same object: `==` of dataclasses compared tuples,
which look at identity first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torch_pjrt.replays.observation import Outside

FILES = sorted((Path(__file__).parents[2] / "packages").glob("*/src/**/*.py"))
HOLDS = re.compile(r"\b(Tensor|Parameter|Arrays?|ndarray)\b")


def compared(tree: ast.AST) -> Iterator[str]:
    """Fields with tensors or arrays in them, of the dataclasses that compare by their fields."""
    for cls in ast.walk(tree):
        if not isinstance(cls, ast.ClassDef):
            continue
        made_by = " ".join(map(ast.unparse, cls.decorator_list))
        if "dataclass" not in made_by or "eq=False" in made_by:
            continue
        for item in cls.body:
            if isinstance(item, ast.AnnAssign):
                annotation, _, _ = ast.unparse(item.annotation).partition("Callable[")
                left_out = item.value is not None and "compare=False" in ast.unparse(item.value)
                if HOLDS.search(annotation) and not left_out:
                    yield f"{cls.name}.{ast.unparse(item.target)}"


def test_no_field_that_is_compared_holds_tensors() -> None:
    found = {f"{file.name}: {x}" for file in FILES for x in compared(ast.parse(file.read_text()))}

    assert found == set()


@pytest.mark.parametrize(
    ("annotation", "n"),
    [("weakref.ref[torch.Tensor]", 1), ("np.ndarray | None", 1), ("Callable[[Array], Array]", 0)],
)
def test_sweep_sees_such_fields(annotation: str, n: int) -> None:
    source = f"@dataclass(frozen=True)\nclass Some:\n    x: {annotation}\n    y: int = 0"

    assert len(list(compared(ast.parse(source)))) == n


def test_tensors_outside_of_a_step_are_told_apart_by_identity() -> None:
    x, y = torch.ones(3, device="pjrt"), torch.ones(3, device="pjrt")

    assert Outside(x) == Outside(x)
    assert Outside(x) != Outside(y)
    gone = Outside(y)
    del y
    assert gone != gone
