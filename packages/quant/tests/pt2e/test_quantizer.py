"""`PjrtQuantizer`, with torchao's `prepare_pt2e` and `convert_pt2e`, makes models of int8 that err little."""

from __future__ import annotations

import copy
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt_quant import PjrtQuantizer, lower_pt2e

pytest.importorskip("torchao")
pytestmark = pytest.mark.filterwarnings("ignore")  # torchao's own, of what it has deprecated


class Model(torch.nn.Module):
    """An embedding, convolutions (with a norm, by groups, of one dim), attention, linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(12, 16)
        self.first = torch.nn.Conv2d(1, 8, 3, padding=1, stride=2)
        self.norm = torch.nn.BatchNorm2d(8)
        self.by_depth = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.sequence = torch.nn.Conv1d(16, 8, 3, padding=1)
        self.project = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        images = self.norm(self.first(x[:, None])).relu()
        images = self.by_depth(images).mean((2, 3))
        q, k, v = self.project(x).view(*tokens.shape, 3, 4, 4).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        return mixed.mean(1) + images + self.sequence(x.mT).mean(2)


TOKENS = torch.randint(0, 12, (4, 9))


def quantized(model: torch.nn.Module, tokens: Tensor, **options: Any) -> torch.fx.GraphModule:
    from torchao.quantization.pt2e.quantize_pt2e import (  # pyright: ignore[reportMissingImports]
        convert_pt2e,
        prepare_pt2e,
    )

    from torch_pjrt_quant import PjrtQuantizer

    program: Any = torch.export.export(model, (tokens,), strict=False).module()
    prepared = prepare_pt2e(program, PjrtQuantizer(**options))
    for _ in range(2):
        prepared(tokens)
    return lower_pt2e(convert_pt2e(prepared))


def called(model: torch.fx.GraphModule) -> list[str]:
    schemas = [getattr(n.target, "_schema", None) for n in model.graph.nodes]
    return [s.name.partition("::")[2] for s in schemas if s is not None]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_product_is_of_integers_and_the_error_is_small(dynamic, per_channel):
    model = Model().eval()
    wanted = model(TOKENS)

    small = quantized(model, TOKENS, dynamic=dynamic, per_channel=per_channel)

    names = called(small)
    assert names.count("convolution_int8") == 3
    assert names.count("product_int8") == 4  # two of attention, two linear layers
    assert not {"linear", "conv1d", "conv2d", "matmul", "scaled_dot_product_attention"} & {*names}
    assert not any(name.startswith("dequantize") for name in names)
    here = small(TOKENS)
    assert (here - wanted).norm() / wanted.norm() < 0.04
    small.to("pjrt")
    there = TOKENS.to("pjrt")
    torch_pjrt.sync()
    before = counters.syncs.total(), counters.fallbacks.total()
    got = small(there)
    assert (counters.syncs.total(), counters.fallbacks.total()) == before
    # A sum that differs in its last bit may round an activation to the next number.
    assert (got.cpu() - here).norm() / here.norm() < 0.01


def test_kinds_and_nodes_may_be_left_out():
    linear_only = quantized(Model().eval(), TOKENS, dynamic=True, only=("linear",))
    names = called(linear_only)
    assert names.count("product_int8") == 2
    assert names.count("scaled_dot_product_attention") == 1

    one = quantized(
        Model().eval(), TOKENS, dynamic=True, only=("linear",), which=lambda n: n.name == "linear"
    )
    assert called(one).count("product_int8") == 1


def test_an_unknown_kind_is_refused():
    from torch_pjrt_quant import PjrtQuantizer

    with pytest.raises(ValueError, match="`only` has 'pool', and takes linear, convolution"):
        PjrtQuantizer(only=("pool",))


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize(
    ("device", "images", "options", "warned"),
    [
        ("tpu", 4, {}, True),
        ("tpu", 16, {}, False),
        ("tpu", 4, {"only": ("linear", "embedding")}, False),
        ("cpu", 4, {}, False),
    ],
)
def test_few_images_on_a_tpu_are_warned_of(monkeypatch, recwarn, device, images, options, warned):
    from torch_pjrt_quant import PjrtQuantizer
    from torch_pjrt_quant.pt2e import quantizer

    there = SimpleNamespace(device=SimpleNamespace(name=device))
    monkeypatch.setattr(quantizer, "client", lambda: there)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2)
    )
    program: Any = torch.export.export(model.eval(), (torch.randn(images, 3, 4, 4),)).module()

    PjrtQuantizer(**options).annotate(program)

    assert any("slower than bfloat16" in str(w.message) for w in recwarn) == warned


PT2E = "torchao.quantization.pt2e.quantize_pt2e"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_narrow_floats_have_products_of_integers_and_stay_narrow(dtype, dynamic):
    wide = Model().eval()
    wanted = wide(TOKENS)
    model = copy.deepcopy(wide).to(dtype)

    small = quantized(model, TOKENS, dynamic=dynamic)

    names = called(small)
    assert names.count("convolution_int8") == 3
    assert names.count("product_int8") == 4
    assert not any(name.startswith("dequantize") for name in names)
    here = small(TOKENS)
    assert here.dtype is dtype
    assert (here - wanted).norm() / wanted.norm() < 0.04
    got = small.to("pjrt")(TOKENS.to("pjrt"))
    assert got.dtype is dtype
    # A sum that differs in its last bit may round an activation to the next number.
    assert (got.cpu() - here).norm() / here.norm() < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_to_be_trained_and_no_float32_stays_and_is_warned_of(dtype):
    model = torch.nn.Sequential(torch.nn.Linear(16, 16)).to(dtype)
    program: Any = torch.export.export(model, (torch.randn(2, 16, dtype=dtype),)).module()

    with pytest.warns(UserWarning, match=f"operators of {dtype} stay as they are.*float32"):
        importlib.import_module(PT2E).prepare_qat_pt2e(program, PjrtQuantizer(training=True))


def test_the_wide_weights_are_gone():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    wide = sum(t.nbytes for t in model.state_dict().values())
    x = torch.randn(2, 64)
    program: Any = torch.export.export(model, (x,)).module()
    pt2e = importlib.import_module(PT2E)
    prepared = pt2e.prepare_pt2e(program, PjrtQuantizer())
    prepared(x)

    small = lower_pt2e(pt2e.convert_pt2e(prepared))

    assert sum(t.nbytes for t in small.state_dict().values()) < 0.3 * wide
    wanted = model(x)
    assert (small(x) - wanted).norm() / wanted.norm() < 0.05
