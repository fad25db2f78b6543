"""Rounding that looks at inputs loses less of the outputs than rounding to nearest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_pjrt
from torch_pjrt_quant import Int4, QuantizedLinear, awq_, gptq_, quantize_
from torch_pjrt_quant.calibrated import _in_order


class Model(torch.nn.Module):
    """Two layers that share an input, one behind them, one that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = torch.nn.Linear(64, 96), torch.nn.Linear(64, 96)
        self.down = torch.nn.Linear(96, 64)
        self.unused = torch.nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def data() -> list[Tensor]:
    """Inputs with a few large columns, which depend on each other, as in language models."""
    mix = torch.randn(64, 64) * 0.3 + torch.eye(64)
    sizes = torch.ones(64)
    sizes[::16] = 12.0
    return [(torch.randn(128, 64) @ mix * sizes).to("pjrt") for _ in range(3)]


WAYS: dict[str, Callable[..., Any]] = {
    "gptq": gptq_,
    "gptq ordered": lambda m, b, c: gptq_(m, b, c, ordered=True),
    "awq": awq_,
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_it_is_better_than_rounding_to_nearest(way, symmetric):
    *calibration, held_out = data()
    config = Int4(group_size=32, symmetric=symmetric)
    model, nearest = Model().to("pjrt"), Model().to("pjrt")
    nearest.load_state_dict(model.state_dict())
    with torch.no_grad():
        wanted = model(held_out).cpu()

    quantize_(nearest, config)
    with pytest.warns(UserWarning, match="no calibration data reaches `unused`: they stay"):
        WAYS[way](model, calibration, config)

    with torch.no_grad():
        ours = (model(held_out).cpu() - wanted).norm() / wanted.norm()
        theirs = (nearest(held_out).cpu() - wanted).norm() / wanted.norm()
    assert ours < 0.8 * theirs
    assert type(model.unused) is torch.nn.Linear  # it was not called


#   inputs, and how they are made of normal numbers (rows, columns)
INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "alike": lambda x: x,
    "with large columns": lambda x: x * torch.where(torch.arange(x.shape[1]) % 16 == 0, 20.0, 1.0),
    "with a mean": lambda x: x + torch.linspace(-3, 3, x.shape[1]),
    "dependent": lambda x: x @ (torch.randn(x.shape[1], x.shape[1]) * 0.3),
    "partly zero": lambda x: x * (torch.arange(x.shape[1]) % 3 > 0),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_no_calibration_error_with_awq_is_above_that_of_nearest(kind, symmetric):
    x = INPUTS[kind](torch.randn(96, 64))
    weight = torch.randn(48, 64).double()
    config = Int4(group_size=32, symmetric=symmetric)

    def error(way: Callable[[Any], Any]) -> float:
        layer: Any = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False))
        layer[0].weight.data.copy_(weight)
        way(layer.to("pjrt"))
        lost = weight - layer[0].dequantized().cpu().double()
        return (lost @ x.double().T).square().sum().item()

    nearest = error(lambda m: quantize_(m, config))
    ours = error(lambda m: awq_(m, [x.to("pjrt")], config))
    assert ours <= nearest * (1 + 1e-6)
    assert ours < 0.95 * nearest  # cutting ranges helps whatever the inputs are


def test_one_layer_is_the_papers_algorithm():
    """Column by column in float64, with the whole inverse updated as in the paper's equations 2 and 3."""
    layer: Any = torch.nn.Sequential(torch.nn.Linear(32, 8, bias=False)).to("pjrt")
    weight = layer[0].weight.detach().cpu().double()
    x = torch.randn(256, 32)
    products = (x.T @ x).double()
    inverse = torch.linalg.inv(products + 0.01 * products.diagonal().mean() * torch.eye(32))

    gptq_(layer, [x.to("pjrt")], Int4(group_size=32))

    scale = layer[0].scale.cpu().double()[:, 0]
    zero = layer[0].zero.cpu().double()[:, 0]
    rounded = torch.zeros_like(weight)
    for i in range(32):
        number = (weight[:, i] / scale + zero).round().clamp(0, 15)
        rounded[:, i] = (number - zero) * scale
        error = (weight[:, i] - rounded[:, i]) / inverse[i, i]
        weight = weight - error[:, None] * inverse[i]
        inverse = inverse - inverse[:, i : i + 1] @ inverse[i : i + 1] / inverse[i, i]
    same = (layer[0].dequantized().cpu().double() - rounded).abs() < 1e-5
    assert same.float().mean() > 0.98  # float32 may round a tie the other way


class Experts(torch.nn.Module):
    """A number of the input decides who is called, by keyword; they share what comes behind."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))
        self.out = torch.nn.Linear(64, 64)

    def forward(self, x: Tensor, number: int) -> Tensor:
        return self.out(input=self.experts[number](input=x).relu())


@pytest.mark.slow("rows")
@pytest.mark.parametrize("way", WAYS)
def test_layers_that_a_later_batch_calls_are_rounded_too(way):
    model = Experts().to("pjrt")
    x = torch.randn(3, 96, 64, device="pjrt")

    with pytest.warns(UserWarning, match=r"reaches `experts\.1`: they stay"):
        WAYS[way](model, [{"x": x[0], "number": 0}, (x[1], 2), (x[2], 0)], Int4(32))

    kinds = [isinstance(m, QuantizedLinear) for m in (*model.experts, model.out)]
    assert kinds == [True, False, True, True]


def test_layers_come_in_the_order_of_their_calls_whichever_batch_calls_them():
    x = torch.randn(4, 64)
    batches = [(x, 0), (x, 2), (x, 1)]
    names = ["out", "experts.0", "experts.1", "experts.2"]

    assert _in_order(Experts(), batches, names) == [
        ["experts.1"],
        ["experts.2"],
        ["experts.0"],
        ["out"],
    ]
    assert _in_order(Model(), [x], ["down", "up", "gate"]) == [["gate", "up"], ["down"]]


#   calibration data, how GPTQ is asked, what the error says
UNFIT: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, Any], str]] = {
    "inf": (lambda x: x.index_fill(0, torch.tensor(1), math.inf), {}, "inf, NaN"),
    "nan": (lambda x: x.index_fill(1, torch.tensor(1), math.nan), {}, "inf, NaN"),
    "huge": (lambda x: x * 1e30, {}, "too large"),
    "few rows": (lambda x: x[:8], {"damping": 0.0}, "no factors with damping=0: .*greater"),
    "dependent columns": (lambda x: x[:, :1].expand(-1, 64), {"damping": 0.0}, "depend on each"),
}


@pytest.mark.parametrize("kind", UNFIT)
@pytest.mark.slow("rows")
@pytest.mark.parametrize("group", [32, 64])
def test_unfit_calibration_data_is_an_error_that_names_the_layer(kind, group):
    make, options, words = UNFIT[kind]
    model = torch.nn.Sequential(torch.nn.Linear(64, 16)).to("pjrt")
    batches = [make(torch.randn(128, 64)).to("pjrt")]

    with pytest.raises(ValueError, match=f"`0`: .*{words}"):
        gptq_(model, batches, Int4(group), **options)
    assert type(model[0]) is torch.nn.Linear


def test_without_a_call_or_with_odd_groups_it_is_refused():
    x = torch.randn(4, 64, device="pjrt")

    with pytest.raises(ValueError, match="no linear layer is called"):
        gptq_(Model().to("pjrt"), [x], Int4(32), lambda name, _: name == "unused")
    with pytest.raises(ValueError, match="`down`: groups of 64 do not divide 96"):
        awq_(Model().to("pjrt"), [x], Int4(64))


@pytest.mark.parametrize("way", [gptq_, awq_])
def test_the_memory_between_is_that_of_one_layer_however_many_there_are(way):
    pjrt: Any = torch.pjrt  # pyright: ignore[reportAttributeAccessIssue]

    def more(layers: int) -> int:
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(layers)))
        model.to("pjrt")
        batches = [torch.randn(64, 64, device="pjrt") for _ in range(2)]
        torch_pjrt.sync()
        before = pjrt.memory_allocated()
        pjrt.reset_peak_memory_stats()
        way(model, batches, Int4(group_size=32))
        torch_pjrt.sync()
        return pjrt.max_memory_allocated() - before

    few, many = more(2), more(7)

    weight = 64 * 64 * 4
    assert abs(many - few) <= weight
    assert few <= 24 * weight
