"""A second process compiles nothing that the first one did, and gets the same results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixture_types import Run

pytestmark = pytest.mark.slow

TRAIN = """
import json, sys
import torch
from torch import nn
import torch_pjrt

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)).to("pjrt")
optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
data = torch.randn(STEPS, BATCH, 4)
losses = []
for x in data.to("pjrt"):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
losses = [float(loss) for loss in losses]
counts = torch_pjrt.report().as_dict()
kept = ("programs_compiled", "programs_loaded", "programs_run", "donated")
print(json.dumps({"losses": losses, **{k: counts[k] for k in kept}}))
"""

Train = Callable[..., dict[str, Any]]


@pytest.fixture
def train(python: Run, tmp_path: Path) -> Train:
    """Trains in a process of its own that keeps programs in a folder; what it printed."""

    def run(lr: float = 1e-2, batch: int = 3, steps: int = 4, **variables: str) -> dict[str, Any]:
        script = (
            TRAIN.replace("LR", str(lr)).replace("BATCH", str(batch)).replace("STEPS", str(steps))
        )
        done = python(script, TORCH_PJRT_CACHE_DIR=str(tmp_path), **variables)
        return json.loads(done.stdout)

    return run


def test_a_second_process_compiles_nothing(train: Train):
    first, second = train(), train()
    assert first["programs_compiled"] == second["programs_loaded"] > 0
    assert (first["programs_loaded"], second["programs_compiled"]) == (0, 0)
    assert second["losses"] == first["losses"]
    assert second["donated"] == first["donated"] > 0


def test_a_constant_is_part_of_the_program(train: Train):
    first, second = train(lr=1e-2), train(lr=3e-2)
    assert second["losses"] != first["losses"]
    assert train(lr=3e-2)["losses"] == second["losses"]


def test_another_shape_is_another_program(train: Train):
    train(batch=3)
    other = train(batch=5)
    assert other["programs_compiled"] > 0


@pytest.mark.parametrize(
    "variables",
    [{"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}, {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}],
    ids=lambda v: next(iter(v)),
)
def test_other_flags_are_other_programs(train: Train, variables: dict[str, str]):
    train()
    assert train(**variables)["programs_loaded"] == 0


def test_an_edited_rule_is_another_program(python: Run, tmp_path: Path):
    """A plugin's source, and the core's, is part of what a program depends on."""
    script = """
import os, sys, torch, torch_pjrt
from pathlib import Path
from torch_pjrt.compile import fingerprint
from torch_pjrt.compile.portable import stamp
torch.zeros((), device="pjrt")
from torch_pjrt.client.client import client
before = fingerprint._ground(client())
assert fingerprint._ground(client()) == before
folder = Path(sys.modules["torch_pjrt_cpu"].__file__).parent
of_folder = stamp(folder)
copy = Path(COPY)
for path in folder.rglob("*.py"):
    (copy / path.name).write_bytes(path.read_bytes())
one = stamp(copy)
(copy / "plugin.py").write_text((copy / "plugin.py").read_text() + "\\n")
assert one != stamp(copy)
assert str(folder) in before and of_folder in before
"""
    python(script.replace("COPY", repr(str(tmp_path))))


def test_damaged_programs_are_compiled_again(train: Train, tmp_path: Path):
    first = train()
    for path in tmp_path.glob("*.program"):
        path.write_bytes(path.read_bytes()[:-10])
    again = train()
    assert (again["programs_loaded"], again["losses"]) == (0, first["losses"])
    assert train()["programs_compiled"] == 0


def test_a_program_that_does_not_load_is_compiled_again(train: Train, tmp_path: Path):
    """Whole by its digest, but no program of this JAX."""
    from torch_pjrt.compile.store import Store

    first = train()
    store = Store(tmp_path, 1 << 30)
    for entry in list(store.entries()):
        store.save(entry.digest, b"no program")
    again = train()
    assert (again["programs_compiled"], again["losses"]) == (
        first["programs_compiled"],
        first["losses"],
    )


HOSTILE = """
import torch, torch_pjrt
values = [(torch.ones(n, device="pjrt") * n).sum().item() for n in range(1, 9)]
counts = torch_pjrt.report().as_dict()
print(values == [n * n for n in range(1, 9)], counts["programs_compiled"], counts["programs_loaded"])
"""


def test_programs_are_right_whatever_the_folder_holds(python: Run, tmp_path: Path):
    """Some of what `packages/core/tests/compile/test_hostile_store.py` lists."""
    assert python(HOSTILE, TORCH_PJRT_CACHE_DIR=str(tmp_path)).stdout.split() == ["True", "8", "0"]
    a, b, c, d, e, f, *rest = sorted(tmp_path.glob("*.program"))
    swapped = a.read_bytes(), b.read_bytes()
    b.write_bytes(swapped[0])
    a.write_bytes(swapped[1])
    for path in (c, d):
        path.unlink()
    os.mkfifo(c)
    d.symlink_to("/dev/zero")
    e.write_bytes(b"[" * 60_000)
    f.chmod(0o666)

    again = python(HOSTILE, TORCH_PJRT_CACHE_DIR=str(tmp_path)).stdout.split()

    assert again == ["True", "6", str(len(rest))] == ["True", "6", "2"]


def test_an_empty_variable_keeps_nothing(python: Run, tmp_path: Path):
    script = TRAIN.replace("LR", "0.1").replace("BATCH", "2").replace("STEPS", "2")
    done = python(script, TORCH_PJRT_CACHE_DIR="", XDG_CACHE_HOME=str(tmp_path))
    assert json.loads(done.stdout)["programs_compiled"] > 0
    assert not list(tmp_path.iterdir())


def test_programs_are_kept_in_the_users_folder_of_caches(python: Run, tmp_path: Path):
    script = "import os\ndel os.environ['TORCH_PJRT_CACHE_DIR']\n" + TRAIN.replace("LR", "0.1")
    python(script.replace("BATCH", "2").replace("STEPS", "2"), XDG_CACHE_HOME=str(tmp_path))
    assert list((tmp_path / "torch-pjrt").glob("*.program"))


def test_the_command_lists_and_clears(train: Train, python: Run, tmp_path: Path):
    compiled = train()["programs_compiled"]
    command = "from torch_pjrt.cli import main; raise SystemExit(main(['cache'{}]))"
    where = {"TORCH_PJRT_CACHE_DIR": str(tmp_path)}
    listed = python(command.format(""), **where).stdout
    assert listed.startswith(f"{compiled} programs, ")
    assert len(listed.splitlines()) == 2 + compiled
    assert python(command.format(", 'prune', '--to', '1G'"), **where).stdout.startswith(
        "0 programs"
    )
    cleared = python(command.format(", 'clear'"), **where).stdout
    assert cleared.startswith(f"{compiled} programs removed")
    assert not list(tmp_path.iterdir())
