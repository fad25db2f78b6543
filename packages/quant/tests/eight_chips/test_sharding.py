"""A small weight that is spread over a mesh stays on its chips, and its scales with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import torch_pjrt
from torch_pjrt_quant import (
    Int4,
    Int8,
    Nf4,
    QuantizedLinear,
    load_quantized_,
    quantize_,
    shard_linear,
    shard_linears_,
)
from torch_pjrt_quant.linear import Config
from torch_pjrt_spmd import Mesh, local_shards, parallelize_module, sharding_of

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


class Block(torch.nn.Module):
    """Two layers as Megatron's, a third one, a norm, and an embedding that is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(256)
        self.up, self.down = torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)
        self.other = torch.nn.Linear(256, 256)
        self.embedding = torch.nn.Embedding(64, 256)
        self.head = torch.nn.Linear(256, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(tokens))
        return self.head(self.other(x + self.down(self.up(x).relu())))


def is_small(name: str, _: torch.nn.Linear) -> bool:
    return name != "head"


TOKENS = torch.tensor([[3, 1, 4], [1, 5, 9]])
UP_DOWN = {"up": ("model", None), "down": (None, "model")}


def specs_of(layer: torch.nn.Module) -> dict[str, object]:
    tensors = [*layer.named_buffers(), *layer.named_parameters()]
    found = {name: sharding_of(t) for name, t in tensors}
    return {name: None if s is None else s.spec for name, s in found.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_that_a_plan_has_spread_stays_spread_when_it_is_quantized(name):
    torch.manual_seed(0)
    model: Any = Block()
    wanted = quantize_(copy.deepcopy(model), CONFIGS[name], is_small)(TOKENS)
    mesh = Mesh((8,), ("model",))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model.to("pjrt"), mesh, plan)
    hooks = {n: len(getattr(model, n)._forward_pre_hooks) for n in plan}

    quantize_(model, CONFIGS[name], is_small)
    got = model(TOKENS.to("pjrt"))

    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)
    up, down = specs_of(model.up), specs_of(model.down)
    assert up["weight"] == ("model", None) and down["weight"] == (None, "model")
    assert up["scale"] == ("model", None)[: model.up.scale.ndim] and up["bias"] == ("model",)
    assert down["scale"] == (None, "model")[: model.down.scale.ndim]
    assert {n: len(getattr(model, n)._forward_pre_hooks) for n in plan} == hooks


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_a_quantized_model_is_spread_by_names(name, device):
    torch.manual_seed(0)
    model: Any = quantize_(Block(), CONFIGS[name], is_small)
    wanted = model(TOKENS)

    shard_linears_(model.to(device), Mesh((8,), ("model",)), UP_DOWN)
    got = model(TOKENS.to("pjrt"))

    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)
    assert specs_of(model.up)["weight"] == ("model", None)
    assert specs_of(model.down)["weight"] == (None, "model")
    assert len({len(local_shards(t)) for t in model.state_dict().values()}) == 1
    assert model.head.weight is model.embedding.weight


def test_a_checkpoint_is_loaded_onto_a_mesh_and_saved_from_it(tmp_path):
    torch.manual_seed(0)
    weights = torch.randint(0, 16, (512, 256))
    words = (weights.view(512, 32, 8) << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)
    tensors = {"up.weight_packed": words, "up.weight_scale": torch.rand(512, 8)}
    others = Block().state_dict()
    tensors |= {n: t for n, t in others.items() if n not in ("up.weight", "head.weight")}
    config = {"quant_method": "compressed-tensors"}
    with torch.device("meta"):
        model: Any = Block()
    alone: Any = load_quantized_(Block(), tensors, config=config, device="cpu")

    load_quantized_(model, tensors, config=config, device="cpu")
    shard_linears_(model, Mesh((8,), ("model",)), {"up": ("model", None)})

    assert {len(s.data) for s in local_shards(model.up.weight)} == {512 // 8}
    saved = {n: t.cpu() for n, t in model.state_dict().items()}
    assert saved.keys() == alone.state_dict().keys()
    for name, tensor in alone.state_dict().items():
        assert torch.equal(saved[name], tensor), name
    got, wanted = model(TOKENS.to("pjrt")).cpu(), alone(TOKENS)
    assert (got - wanted).norm() / wanted.norm() < 1e-5


def test_a_name_that_fits_no_layer_is_refused():
    model = quantize_(Block(), Int8(), is_small)

    with pytest.raises(ValueError, match=r"named as 'gate'; there are up, down, other"):
        shard_linears_(model, Mesh((8,), ("model",)), {"gate": ("model", None)})


def _exchanged(name: str, way: str) -> str:
    """What `explain` says of a call, the collectives of its program among it."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048, bias=False))
    quantize_(model, CONFIGS[name]).to("pjrt")
    layer = model[0]
    assert isinstance(layer, QuantizedLinear)
    shard_linear(layer, Mesh((8,), ("model",)), **{way: "model"})
    x = torch.randn(3, 512, device="pjrt")
    return str(torch_pjrt.explain(lambda: model(x)))
