"""The block of the page on fully sharded models runs on eight chips."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from torch_pjrt_spmd import sharding_of

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "fsdp.md"
BLOCKS = re.findall(r"^```python[^\n]*\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


@pytest.mark.slow
def test_the_block_trains_a_model_that_lies_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__docs__"}
    [block] = BLOCKS

    exec(compile(block, str(GUIDE), "exec"), names)

    assert 0 < float(capsys.readouterr().out) < 10
    where = sharding_of(names["model"][1].linear1.weight)
    assert where is not None
    assert where.spec == ("fsdp", None)
