"""The blocks of the guide run on eight chips, in the order in which a reader meets them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "many-chips.md"
BLOCKS = re.findall(r"^```python[^\n]*\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


def test_blocks_of_the_guide_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__docs__"}
    for block in BLOCKS:
        exec(compile(block, str(GUIDE), "exec"), names)

    loss, spec, shards, *drawn = capsys.readouterr().out.splitlines()

    assert len(BLOCKS) >= 3
    assert 0 < float(loss) < 1
    assert spec == "('data', 'model')"
    assert shards == "[(8, 2), (8, 2)]"
    assert any("CPU" in line for line in drawn)
    assert "True" in drawn  # a chip has its part of the weight
    assert any(line.endswith("  chip 7") for line in drawn)
    assert "all-reduce ('model',) 1024 1" in drawn
