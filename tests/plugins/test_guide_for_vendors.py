"""The package in the guide for vendors, from its own text, can be installed and trains."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fixture_types import Run
from installed_packages import install

pytestmark = pytest.mark.slow("file")

GUIDE = Path(__file__).parents[2] / "docs" / "your-accelerator.md"
TRAIN = """
import copy
import torch

torch.manual_seed(0)
on_cpu = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.SiLU(), torch.nn.Linear(16, 3))
model = copy.deepcopy(on_cpu).to("pjrt")
x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))

def train(model, x, y):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach().cpu()

torch.testing.assert_close(train(model, x.to("pjrt"), y.to("pjrt")), train(on_cpu, x, y))
from torch_pjrt.client.client import client
print(client().device.name, client().lowerings[torch.ops.aten.silu.default].where)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has put the package that the guide's blocks are the files of."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    blocks = re.findall(r"^`([\w./]+)`:\n\n```\w+[^\n]*\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    assert len(blocks) == 4
    for name, content in blocks:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(content)
    return install(source, target)


def test_package_of_the_guide_trains_with_its_own_rule(python: Run, installed: Path) -> None:
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]

    done = python(TRAIN, PJRT_DEVICE="ACME", PYTHONPATH=os.pathsep.join(paths))

    assert done.stdout.split()[0] == "ACME"
    assert "lowerings.py" in done.stdout
    assert "has no 64-bit types" in done.stderr
