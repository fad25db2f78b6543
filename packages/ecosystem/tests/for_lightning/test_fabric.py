"""Fabric on `pjrt` trains as on the CPU, one program a step."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from small import Costs, model, rows
from torch_pjrt.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*Spec:FutureWarning")


@pytest.fixture(
    params=["lightning.fabric", pytest.param("lightning_fabric", marks=pytest.mark.slow)]
)
def fabric_of(request: pytest.FixtureRequest) -> ModuleType:
    """Fabric, by both of its names."""
    return import_module(request.param)


def train(fabric: Any) -> tuple[list[float], Costs]:
    fabric.launch()
    net = model()
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), 1e-2))
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(rows(), 4))  # type: ignore[arg-type]
    losses, costs = [], Costs()
    for x, labels in loader:
        costs.mark()
        loss = nn.functional.cross_entropy(net(x), labels)
        optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(net, optimizer, max_norm=0.5, error_if_nonfinite=False)
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses], costs


@pytest.mark.parametrize("accelerator", ["auto", "pjrt"])
def test_losses_are_the_cpus_with_one_program_a_step(
    fabric_of: ModuleType, accelerator: str
) -> None:
    fabric = fabric_of.Fabric(accelerator=accelerator)

    losses, costs = train(fabric)

    assert fabric.device == torch.device("pjrt:0")
    assert set(costs.steps[3:]) == {(0, 1, 0)} and costs.fallbacks == 0
    on_cpu, _ = train(fabric_of.Fabric(accelerator="cpu"))
    torch.testing.assert_close(losses, on_cpu, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_is_that_of_the_device(fabric_of: ModuleType, precision: str) -> None:
    fabric = fabric_of.Fabric(accelerator="pjrt", precision=precision)
    net = fabric.setup(model())

    with fabric.autocast():
        product = torch.ones(2, 2, device="pjrt") @ torch.ones(2, 2, device="pjrt")
    fabric.backward(net(torch.ones(1, 8, device="pjrt")).sum() * 1e-3)

    assert product.dtype == (torch.bfloat16 if precision == "bf16-mixed" else torch.float16)
    norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm().item()
    assert (norm > 1) == (precision == "16-mixed")  # what the scaler has multiplied


def test_a_checkpoint_is_loaded(fabric_of: ModuleType, tmp_path: Any) -> None:
    fabric = fabric_of.Fabric(accelerator="pjrt")
    net = fabric.setup(model())
    fabric.save(tmp_path / "saved.ckpt", {"net": net})
    wanted = {name: x.cpu().clone() for name, x in net.state_dict().items()}
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()

    fabric.load(tmp_path / "saved.ckpt", {"net": net})

    assert all(torch.equal(x.cpu(), wanted[name]) for name, x in net.state_dict().items())
    assert {x.device.type for x in net.state_dict().values()} == {"pjrt"}


def test_several_devices_are_refused(fabric_of: ModuleType) -> None:
    with pytest.raises(Exception, match="there is one device to a process"):
        fabric_of.Fabric(accelerator="pjrt", devices=2)


def test_several_processes_that_would_each_train_alone_are_refused(
    fabric_of: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(UnsupportedError, match="each would train a model of its own"):
        fabric_of.Fabric(accelerator="pjrt", strategy="pjrt")
