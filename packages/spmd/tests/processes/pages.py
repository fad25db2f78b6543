"""Runs, in each of several processes, the blocks of the pages on these that a single one cannot run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

DOCS = Path(__file__).resolve().parents[4] / "docs"
MARK = "not-run: needs several processes; the tests of the package run it"

names: dict[str, Any] = {"__name__": "__docs__"}
ran = 0
for page in ("many-processes.md", "launching.md", "faults.md"):
    for block in re.findall(
        rf"^```python {MARK}\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S
    ):
        names.setdefault("loader", [0, 1])
        exec(compile(block, page, "exec"), names)
        ran += 1

# The second page has made a group anew.
print(ran, dist.get_world_size(), torch.isfinite(names["loss"]).item())
