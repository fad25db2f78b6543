"""Programs of a mesh are kept on disk; how their inputs and results lie is a part of their name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import warm

PROGRAM = """
import sys
import torch
from torch_pjrt.extend import counters
from torch_pjrt_spmd import Mesh, mark_sharding, program_reports, psum, shard_map

mesh = Mesh((2, 4), ("data", "model"))
spec = eval(sys.argv[1])
w = mark_sharding(torch.arange(64.0).to("pjrt").view(8, 8), mesh, spec)
x = mark_sharding(torch.ones(8, 8).to("pjrt"), mesh, ("data",))
if "mapped" in sys.argv:
    factor = float(sys.argv[-1])
    specs = [("data", "model"), ("model", None)]
    y = shard_map(lambda x, w: psum(x @ w * factor, "model"), mesh, specs, ("data", None))(x, w)
else:
    y = x @ w + 1
print(y.sum().item(), counters.programs_compiled, counters.programs_loaded, dict(counters.not_kept))
print([(c.kind, c.axes, c.n_bytes) for c in program_reports()[-1].collectives])
"""


def run(spec: str, *further: str) -> list[str]:
    done = warm.run(["-c", PROGRAM, spec, *further], os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_second_process_compiles_nothing_unless_the_sharding_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", str(tmp_path))

    total, compiled, loaded, lost, *exchanged = run("(None, 'model')")
    assert (compiled, loaded, lost) == ("1", "0", "{}")

    assert run("(None, 'model')") == [total, "0", "1", "{}", *exchanged]
    assert run("('model', None)")[:4] == [total, "1", "0", "{}"]
    assert "'all-reduce'," in "".join(exchanged)


def test_second_process_loads_what_a_mapped_function_is_unless_its_graph_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", str(tmp_path))

    total, *counts, kind = run("(None, 'model')", "mapped", "0.0")[:5]
    assert counts == ["1", "0", "{}"], kind

    assert run("(None, 'model')", "mapped", "0.0")[:4] == [total, "0", "1", "{}"]
    assert run("(None, 'model')", "mapped", "-0.0")[1:4] == ["1", "0", "{}"]
    assert run("(None, 'model')", "mapped", "2.0")[1:4] == ["1", "0", "{}"]
