"""Modules of TorchScript are saved, loaded and moved as on CPU."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.BatchNorm2d(4))
        self.table: torch.Tensor
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).flatten(2).sum(1) @ torch.ones_like(x[0, 0, :, :2]) + self.table[0]


def saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    return file


@pytest.mark.parametrize("way", ["where it was", "map_location", "to", "there and back"])
def test_a_file_is_loaded(way: str) -> None:
    torch.manual_seed(0)
    model, x = Model().eval(), torch.rand(1, 3, 4, 4)
    expected = model(x)
    file = saved(model.to("pjrt") if way == "where it was" else model)

    loaded: Any = torch.jit.load(file, map_location="pjrt" if way == "map_location" else None)
    if way in ("to", "there and back"):
        loaded = loaded.to("pjrt")
    device = "pjrt"
    if way == "there and back":
        loaded, device = loaded.cpu(), "cpu"

    torch.testing.assert_close(loaded(x.to(device)).cpu(), expected)
    for name, tensor in model.state_dict().items():
        found = loaded.state_dict()[name]
        assert (found.device.type, found.stride()) == (device, tensor.stride())
        assert torch.equal(found.relu().cpu(), tensor.relu().cpu())


def test_a_loaded_module_trains() -> None:
    loaded: Any = torch.jit.load(saved(Model())).to("pjrt")
    weight = next(iter(loaded.parameters()))
    before = weight.detach().cpu()

    loaded(torch.rand(1, 3, 4, 4, device="pjrt")).square().sum().backward()
    torch.optim.SGD(loaded.parameters(), lr=0.1).step()

    assert all(p.grad is not None and p.grad.device.type == "pjrt" for p in loaded.parameters())
    assert not torch.equal(weight.cpu(), before)
