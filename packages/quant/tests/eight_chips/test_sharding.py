"""A small weight that is spread over a mesh stays on its chips, and its scales with it."""

from __future__ import annotations

import pytest
import torch

import torch_pjrt
from torch_pjrt_quant import Int4, Int8, Nf4, QuantizedLinear, quantize_, shard_linear
from torch_pjrt_quant.linear import Config
from torch_pjrt_spmd import Mesh, sharding_of

CONFIGS: dict[str, Config] = {
    "int8": Int8(),
    "int8 dynamic": Int8(dynamic=True),
    "int4": Int4(group_size=32),
    "nf4": Nf4(group_size=32),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("way", ["rows", "columns"])
def test_results_are_those_of_one_chip(name, way):
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048))
    quantize_(model, CONFIGS[name]).to("pjrt")
    x = torch.randn(3, 512, device="pjrt")
    wanted = model(x).cpu()
    layer = model[0]
    assert isinstance(layer, QuantizedLinear)

    mesh = Mesh((8,), ("model",))
    shard_linear(layer, mesh, **{way: "model"})
    got = model(x)

    assert all(sharding_of(t) is not None for t in (layer.weight, layer.scale))
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_that_are_spread_stay_on_their_chips(name):
    assert "all-gather" not in _exchanged(name, "rows")


def test_columns_that_are_spread_are_summed():
    assert "all-reduce" in _exchanged("int8 dynamic", "columns")


def _exchanged(name: str, way: str) -> str:
    """What `explain` says of a call, the collectives of its program among it."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048, bias=False))
    quantize_(model, CONFIGS[name]).to("pjrt")
    layer = model[0]
    assert isinstance(layer, QuantizedLinear)
    shard_linear(layer, Mesh((8,), ("model",)), **{way: "model"})
    x = torch.randn(3, 512, device="pjrt")
    return str(torch_pjrt.explain(lambda: model(x)))
