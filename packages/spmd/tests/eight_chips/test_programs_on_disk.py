"""Programs of a mesh are kept on disk; how their inputs and results lie is a part of their name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import warm

PROGRAM = """
import json
import sys
import torch
from torch_pjrt.extend import counters
from torch_pjrt_spmd import Mesh, mark_sharding, program_reports, psum, shard_map

mesh = Mesh((2, 4), ("data", "model"))
spec, factors = eval(sys.argv[1]), [float(word) for word in sys.argv[2:]]


def say(make):
    w = torch.arange(64.0).to("pjrt").view(8, 8)
    x = mark_sharding(torch.ones(8, 8).to("pjrt"), mesh, ("data",))
    before = counters.programs_compiled, counters.programs_loaded
    total = make(x, w).sum().item()
    made = counters.programs_compiled - before[0], counters.programs_loaded - before[1]
    found = [(c.kind, c.axes, c.n_bytes) for c in program_reports()[-1].collectives]
    print(json.dumps([total, *made, dict(counters.not_kept), found]))


say(lambda x, w: x @ mark_sharding(w, mesh, spec) + 1)
for factor in factors:
    specs = [("data", "model"), ("model", None)]
    f = shard_map(lambda x, w: psum(x @ w * factor, "model"), mesh, specs, ("data", None))
    say(lambda x, w: f(x, mark_sharding(w, mesh, (None, "model"))))
"""


def run(spec: str, *factors: float) -> list[Any]:
    """Of a product and of a mapped function with each factor: its sum, what was compiled, loaded, ...."""
    done = warm.run(["-c", PROGRAM, spec, *map(str, factors)], os.environ)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_second_process_compiles_nothing_unless_the_sharding_or_a_mapped_graph_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", str(tmp_path))

    first = run("(None, 'model')", 0.0)
    assert [made[1:4] for made in first] == [[1, 0, {}]] * 2

    again = run("(None, 'model')", 0.0)
    assert again == [[total, 0, 1, {}, found] for total, _, _, _, found in first]
    assert "all-reduce" in [kind for kind, *_ in first[0][-1]]
    others = run("('model', None)", -0.0, 2.0)
    assert [made[1:4] for made in others] == [[1, 0, {}]] * 3
    assert others[0][0] == first[0][0]
