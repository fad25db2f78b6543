"""Each layer of experts of Transformers whose code reads who has tokens is a row of the table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import transformers

from torch_pjrt_ecosystem.table import PATCHES

MODELS = Path(str(transformers.__file__)).parent / "models"
NAME = re.compile("expert|gat(e|ing)|router|sparse|moe(block|layer)?$", re.IGNORECASE)
READS = {"nonzero", "tolist", "item", "bincount"}
CALL = re.compile(rf"\.({'|'.join(READS)})\(")
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def of_experts() -> Iterator[tuple[str, ast.ClassDef]]:
    """Classes by their names, with the modules that they are in; only of files where something may read."""
    for path in sorted(MODELS.glob("*/modeling_*.py")):
        text = path.read_text()
        if not CALL.search(text) or not any(map(NAME.search, CLASS.findall(text))):
            continue
        module = f"transformers.models.{path.parent.name}.{path.stem}"
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and NAME.search(node.name):
                yield module, node


def reads(node: ast.ClassDef) -> bool:
    """Whether it calls what reads, and `transformers.integrations.moe` does not stand for it."""
    if any("use_experts_implementation" in ast.unparse(x) for x in node.decorator_list):
        return False
    calls = (x.func for x in ast.walk(node) if isinstance(x, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr in READS for f in calls)


def test_those_that_read_are_rows() -> None:
    classes = list(of_experts())
    rows = {module for patch in PATCHES for module in patch.modules}

    assert len(classes) > 100
    assert {module for module, node in classes if reads(node)} - rows == set()
