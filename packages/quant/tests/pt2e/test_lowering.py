"""`lower_pt2e` gives products of int8 with the values of what it was given, and widens nothing."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor
from torch.export import Dim

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt_quant import export, integers, lower_pt2e

F = torch.nn.functional
quantized = torch.ops.quantized_decomposed


class Small(torch.nn.Module):
    """A weight of int8, by channel or by tensor."""

    def __init__(self, *shape: int, per_channel: bool = True) -> None:
        super().__init__()
        self.per_channel = per_channel
        self.register_buffer("numbers", torch.randint(-127, 128, shape, dtype=torch.int8))
        self.register_buffer("scale", torch.rand(shape[0]) * 0.01 + 0.001)
        self.register_buffer("zero", torch.zeros(shape[0], dtype=torch.int64))

    def wide(self) -> Tensor:
        if self.per_channel:
            return quantized.dequantize_per_channel(
                self.numbers, self.scale, self.zero, 0, -127, 127, torch.int8
            )
        return quantized.dequantize_per_tensor(self.numbers, 0.004, 0, -127, 127, torch.int8)


def static(x: Tensor) -> Tensor:
    args = 0.03, -7, -128, 127, torch.int8
    return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *args), *args)


def unsigned(x: Tensor) -> Tensor:
    args = 0.03, 120, 0, 255, torch.uint8
    return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *args), *args)


def symmetric(x: Tensor) -> Tensor:
    args = 0.03, 0, -127, 127, torch.int8
    return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *args), *args)


def dynamic(x: Tensor) -> Tensor:
    scale, zero = quantized.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
    args = scale, zero, -128, 127, torch.int8
    numbers = quantized.quantize_per_tensor.tensor(x, *args)
    return quantized.dequantize_per_tensor.tensor(numbers, *args)


def tokens(x: Tensor) -> Tensor:
    scale, zero = quantized.choose_qparams_per_token_asymmetric(x, torch.int8)
    args = scale, zero, -128, 127, torch.int8
    return quantized.dequantize_per_token(
        quantized.quantize_per_token(x, *args), *args, torch.float32
    )


ACTIVATIONS = {f.__name__: f for f in (static, unsigned, symmetric, dynamic, tokens)}


class Linear(torch.nn.Module):
    def __init__(self, kind: str, per_channel: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.weight = Small(24, 16, per_channel=per_channel)
        self.bias = torch.nn.Parameter(torch.randn(24)) if bias else None
        self.quantize = ACTIVATIONS.get(kind, lambda x: x)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.quantize(x), self.weight.wide(), self.bias)


class Convolution(torch.nn.Module):
    def __init__(self, kind: str, n: int = 2, per_channel: bool = True, **options: Any) -> None:
        super().__init__()
        self.weight = Small(8, 8 // options.get("groups", 1), *[3] * n, per_channel=per_channel)
        self.bias = torch.nn.Parameter(torch.randn(8))
        self.quantize, self.options = ACTIVATIONS[kind], options
        self.convolve = (F.conv1d, F.conv2d, F.conv3d)[n - 1]

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(self.quantize(x), self.weight.wide(), self.bias, **self.options)


class Matmul(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.quantize = ACTIVATIONS[kind]

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.quantize(a) @ self.quantize(b)


class Embedding(torch.nn.Module):
    def __init__(self, per_channel: bool = True) -> None:
        super().__init__()
        self.weight = Small(10, 6, per_channel=per_channel)

    def forward(self, places: Tensor) -> Tensor:
        return F.embedding(places, self.weight.wide())


image = torch.randn(2, 8, 9, 7)
#   name, module, its inputs, the operator of ours that it becomes
CASES: dict[str, tuple[torch.nn.Module, tuple[Tensor, ...], Any]] = {
    **{
        f"linear {kind}": (Linear(kind), (torch.randn(3, 5, 16),), integers.product_int8)
        for kind in ACTIVATIONS
    },
    "linear of float": (
        Linear("none"), (torch.randn(3, 16),), torch.ops.torch_pjrt_quant.linear_int8,
    ),
    "linear of float, one scale": (
        Linear("none", per_channel=False),
        (torch.randn(3, 16),),
        torch.ops.torch_pjrt_quant.linear_int8,
    ),
    "linear, one scale, no bias": (
        Linear("dynamic", per_channel=False, bias=False),
        (torch.randn(3, 16),),
        integers.product_int8,
    ),
    **{
        f"convolution {kind}": (Convolution(kind, padding=1), (image,), integers.convolution_int8)
        for kind in ("static", "unsigned", "symmetric", "dynamic")
    },
    "convolution, one scale": (
        Convolution("static", per_channel=False), (image,), integers.convolution_int8,
    ),
    "convolution with strides": (
        Convolution("static", stride=(2, 1), padding=(2, 1), dilation=(1, 2)),
        (image,),
        integers.convolution_int8,
    ),
    "convolution of groups": (
        Convolution("dynamic", groups=2, padding=1), (image,), integers.convolution_int8,
    ),
    "convolution by depth": (
        Convolution("dynamic", groups=8, padding=1), (image,), integers.convolution_int8,
    ),
    "convolution of one dim": (
        Convolution("static", 1, stride=2), (image[..., 0],), integers.convolution_int8,
    ),
    "convolution of three dims": (
        Convolution("static", 3, padding=1),
        (torch.randn(1, 8, 4, 3, 5),),
        integers.convolution_int8,
    ),
    **{
        f"matmul {kind}": (
            Matmul(kind),
            (torch.randn(2, 3, 5, 16), torch.randn(2, 3, 16, 4)),
            integers.product_int8,
        )
        for kind in ("static", "unsigned", "symmetric", "dynamic")
    },
    "matmul by a matrix": (
        Matmul("static"), (torch.randn(2, 5, 16), torch.randn(16, 4)), integers.product_int8,
    ),
}  # fmt: skip


def lowered(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> torch.fx.GraphModule:
    return lower_pt2e(torch.export.export(module.eval(), inputs, strict=False).module())


def packets(model: torch.fx.GraphModule) -> list[str]:
    """Names of the operators that are called, without their overloads."""
    schemas = [getattr(n.target, "_schema", None) for n in model.graph.nodes]
    return [s.name for s in schemas if s is not None]


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_before(name):
    module, inputs, operator = CASES[name]
    wanted = module(*inputs)

    model = lowered(module, inputs)

    assert str(getattr(operator, "_qualname", operator)).replace(".", "::") in packets(model)
    here = model(*inputs)
    torch.testing.assert_close(here, wanted, rtol=1e-5, atol=1e-5)
    model.to("pjrt")
    there = [x.to("pjrt") for x in inputs]
    torch_pjrt.sync()
    before = counters.fallbacks.total()
    got = model(*there)
    torch.testing.assert_close(got.cpu(), here, rtol=1e-5, atol=1e-5)
    assert counters.fallbacks.total() == before


@pytest.mark.parametrize("per_channel", [True, False])
def test_an_embedding_gathers_before_it_widens(per_channel):
    module, places = Embedding(per_channel), torch.tensor([[1, 9, 0]])

    model = lowered(module, (places,))

    assert not any(name.startswith("quantized_decomposed") for name in packets(model))
    assert torch.equal(model(places), module(places))
    assert torch.equal(model.to("pjrt")(places.to("pjrt")).cpu(), module(places))


@pytest.mark.parametrize("kind", ["zeros in the weight", "another axis", "a part of the batch"])
def test_what_cannot_be_integers_stays_as_it_was(kind):
    module: Any = Matmul("tokens") if kind == "a part of the batch" else Linear("static")
    inputs = (torch.randn(2, 16),)
    if kind == "zeros in the weight":
        module.weight.zero += 3
    elif kind == "another axis":
        module.weight.wide = lambda: quantized.dequantize_per_channel(
            module.weight.numbers, torch.rand(16), None, 1, -127, 127, torch.int8
        )
        torch.manual_seed(0)
    else:
        inputs = torch.randn(2, 16), torch.randn(16, 3)

    model = lowered(module, inputs)

    assert not any(name.startswith("torch_pjrt_quant") for name in packets(model))


def program(model: torch.fx.GraphModule, inputs: tuple[Tensor, ...]) -> str:
    """What XLA makes of it for the CPU."""
    made = export(model, inputs, platforms=["cpu"]).jax()
    with jax.enable_x64(True):
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in made.in_avals]
        text = jax.jit(made.call).lower(*specs).compile().as_text()
    assert text is not None
    return text


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("what", ["linear", "convolution", "matmul"])
def test_the_program_multiplies_integers_and_widens_nothing(what, kind):
    if what == "linear":
        module: Any = Linear(kind)
        module.weight, module.bias = Small(160, 96), None
        inputs: tuple[Tensor, ...] = (torch.randn(40, 96),)
        shapes = [(40, 96), (160, 96), (96, 160)]
    elif what == "convolution":
        module, inputs = Convolution(kind), (torch.randn(2, 8, 20, 21),)
        shapes = [(8, 8, 3, 3), (2 * 18 * 19, 72), (8, 72), (72, 8)]
    else:
        module, inputs = Matmul(kind), (torch.randn(3, 40, 96), torch.randn(3, 96, 24))
        shapes = []  # on CPU, XLA computes batches of such products from int32

    text = program(lowered(module, inputs), inputs)

    products = [line for line in text.splitlines() if re.search(r"= \S+ (dot|convolution)\(", line)]
    calls = [line for line in text.splitlines() if "custom_call_target" in line]
    assert products and all("= s32[" in line for line in products), products
    assert not any("dot" in c or "conv" in c for c in calls)
    entry = text[text.index("\nENTRY") :]
    for dims in shapes:  # no operand in more than 8 bits that is kept in memory
        of = ",".join(map(str, dims))
        wide = re.findall(rf"= (?:f32|s32|bf16|s16)\[{of}\]\S* (?!parameter)", entry)
        assert not wide, (dims, wide)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_what_is_between_two_convolutions_is_never_in_memory_as_floats(kind):
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Convolution(kind), Convolution(kind)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(F.relu(self.first(x)))

    inputs = (torch.randn(2, 8, 20, 21),)

    text = program(lowered(Two(), inputs), inputs)

    entry = text[text.index("\nENTRY") :]
    between = 2 * 8 * 18 * 19
    sizes = re.findall(r"= f32\[([\d,]+)\]\S* (?!parameter|bitcast)", entry)
    assert not [s for s in sizes if math.prod(map(int, s.split(","))) == between], sizes


def test_sizes_may_vary():
    module = Linear("dynamic")
    program = torch.export.export(
        module.eval(), (torch.randn(3, 16),), dynamic_shapes=({0: Dim("batch", max=64)},)
    )
    model = lower_pt2e(program.module())

    for batch in (2, 7):
        x = torch.randn(batch, 16)
        torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-5)
    made = export(model, (torch.randn(3, 16),), dynamic_shapes=({0: Dim("batch", max=64)},))
    assert made.entries == ["forward"]
