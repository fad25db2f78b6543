"""Dynamo has the rules for its functions that it has without us, whichever is imported first."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

# Dynamo collects them once: what is not imported then has none for the rest of the process.
PROGRAM = """
import sys, torch
{before}
import torch._dynamo
from torch._dynamo import trace_rules

rules = trace_rules.get_torch_obj_rule_map()
for names in trace_rules.torch_name_rule_map:
    for name in names:
        found = None if ".py#" in name else trace_rules.load_object(name)
        if found is not None and found not in rules and getattr(found, "__wrapped__", None) not in rules:
            print(name)


def step(x):
    torch._dynamo.mark_static(x, 0)
    return x + 1


torch.compile(step, backend="eager", fullgraph=True)(torch.ones(2, device="{device}"))
"""
BEFORE = {
    "the device": 'torch.ones(2, device="pjrt").sum().item()',
    "a model and its optimizer": (
        'p = torch.nn.Linear(2, 2, device="pjrt"); p(torch.ones(1, 2, device="pjrt")).sum().backward(); '
        "torch.optim.AdamW(p.parameters()).step()"
    ),
    "nothing": "",
    "our compiler": "import torch_pjrt_dynamo",
    "the kernels": "import torch_pjrt_kernels, torch_pjrt_kernels.attention.operator",
}


def lacking(before: str, device: str = "pjrt", **environment: str) -> list[str]:
    """The functions that have no rule, in a process of its own."""
    program = PROGRAM.format(before=before, device=device)
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


@functools.cache
def lacking_without_us() -> list[str]:
    return lacking("", "cpu", TORCH_DEVICE_BACKEND_AUTOLOAD="0")


@pytest.mark.slow("rows")
@pytest.mark.parametrize("first", BEFORE)
def test_no_rule_is_lost(first: str) -> None:
    if first == "the kernels":
        pytest.importorskip("torch_pjrt_kernels")

    assert lacking(BEFORE[first]) == lacking_without_us()
