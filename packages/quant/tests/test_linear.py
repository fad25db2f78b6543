"""Products with small weights are those with the weights they stand for, and no weight is made wide."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim

from torch_pjrt.plugin.rules import to_jax
from torch_pjrt_quant import (
    Float8,
    Int4,
    Int8,
    Nf4,
    QuantizedLinear,
    export,
    packing,
    quantize_,
    rules,
)
from torch_pjrt_quant.exporting.load import load as load_without_torch
from torch_pjrt_quant.linear import Config

CONFIGS: dict[str, Config] = {
    "int8": Int8(),
    "int8 dynamic": Int8(dynamic=True),
    "int4": Int4(group_size=32),
    "int4 symmetric": Int4(group_size=64, symmetric=True),
    "nf4": Nf4(group_size=32),
    "float8": Float8(),
    "float8 dynamic": Float8(dynamic=True),
}
RULES = {
    "int8": rules.linear_int8,
    "int8 dynamic": rules.linear_int8_dynamic,
    "int4": rules.linear_int4,
    "int4 symmetric": rules.linear_int4,
    "nf4": rules.linear_nf4,
    "float8": rules.linear_float8,
    "float8 dynamic": rules.linear_float8_dynamic,
}
# How far a product of random numbers may be from the float one, relative to its size.
ERRORS = {
    "int8": 0.01,
    "int8 dynamic": 0.015,
    "int4": 0.12,
    "int4 symmetric": 0.15,
    "nf4": 0.12,
    "float8": 0.04,
    "float8 dynamic": 0.06,
}


def layer(
    config: Config, columns: int = 64, rows: int = 48, *, bias: bool = True
) -> QuantizedLinear:
    model = torch.nn.Sequential(torch.nn.Linear(columns, rows, bias=bias))
    quantize_(model, config)
    made = model[0]
    assert isinstance(made, QuantizedLinear)
    return made


@pytest.mark.parametrize("name", CONFIGS)
def test_the_device_computes_what_the_cpu_does(name):
    quantized = layer(CONFIGS[name])
    inputs = [torch.randn(n, 64) for n in (1, 3, 9)] + [torch.randn(2, 3, 64)]

    wanted = [quantized(x) for x in inputs]
    quantized.to("pjrt")
    got = [quantized(x.to("pjrt")) for x in inputs]

    tolerance = 2e-2 if name == "float8 dynamic" else 1e-5  # bfloat16's products there
    for there, here in zip(got, wanted, strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_error_is_that_of_the_format(name):
    linear = torch.nn.Linear(256, 256, bias=False)
    torch.nn.init.normal_(linear.weight)
    x = torch.randn(16, 256)
    wanted = linear(x)

    got = CONFIGS[name].layer(linear)(x)

    error = (got - wanted).norm() / wanted.norm()
    assert 0 < error < ERRORS[name]


@pytest.mark.parametrize("rows", [1 << 12, 4100, 4097])
def test_large_weights_go_by_tiles(rows):
    quantized = layer(Int4(group_size=32), 64, rows).to("pjrt")
    x = torch.randn(3, 64)

    got = quantized(x.to("pjrt")).cpu()

    assert quantized.bias is not None
    wanted = torch.nn.functional.linear(x, quantized.dequantized().cpu(), quantized.bias.cpu())
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_stays(name):
    quantized = layer(CONFIGS[name]).to("pjrt")
    x = torch.randn(2, 64, dtype=torch.bfloat16)

    got = quantized(x.to("pjrt"))

    assert got.dtype == torch.bfloat16
    wanted = quantized(x.float().to("pjrt"))
    torch.testing.assert_close(got.cpu().float(), wanted.cpu(), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", [n for n in CONFIGS if "dynamic" not in n])
def test_gradients_reach_input_and_bias(name):
    quantized = layer(CONFIGS[name]).to("pjrt")
    x = torch.randn(3, 64)
    there = x.to("pjrt").requires_grad_()

    quantized(there).square().sum().backward()

    assert quantized.bias is not None and quantized.bias.grad is not None
    assert there.grad is not None
    here = x.clone().requires_grad_()
    bias = quantized.bias.detach().cpu().requires_grad_()
    torch.nn.functional.linear(here, quantized.dequantized().cpu(), bias).square().sum().backward()
    assert here.grad is not None and bias.grad is not None
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(quantized.bias.grad.cpu(), bias.grad, rtol=1e-4, atol=1e-4)


def test_packing_is_undone_by_unpacking():
    numbers = torch.randint(0, 16, (5, 48), dtype=torch.uint8)

    assert torch.equal(packing.unpack(packing.pack(numbers, 16), 16), numbers)


def test_compiled_it_is_one_graph_with_the_same_results():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    quantize_(model, Int4(group_size=32)).to("pjrt")
    x = torch.randn(2, 64, device="pjrt")

    compiled = torch.compile(model, backend="pjrt", fullgraph=True)(x)

    torch.testing.assert_close(compiled.cpu(), model(x).cpu())


def test_saved_and_loaded_it_is_the_same(tmp_path):
    model = quantize_(torch.nn.Sequential(torch.nn.Linear(64, 8)), Int4(group_size=32)).to("pjrt")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    with torch.device("meta"):
        fresh = quantize_(torch.nn.Sequential(torch.nn.Linear(64, 8)), Int4(group_size=32))
    x = torch.randn(2, 64, device="pjrt")

    fresh.load_state_dict(torch.load(tmp_path / "model.pt"), assign=True)

    assert torch.equal(fresh(x).cpu(), model(x).cpu())


def test_casts_leave_weights_and_scales_as_they_are():
    model = quantize_(torch.nn.Sequential(torch.nn.Linear(64, 8)), Float8()).to(torch.bfloat16)

    kinds = {name: t.dtype for name, t in model.state_dict().items()}
    assert kinds == {
        "0.weight": torch.float8_e4m3fn,
        "0.scale": torch.float32,
        "0.bias": torch.bfloat16,
    }


@pytest.mark.parametrize("name", ["int8 dynamic", "int4"])
def test_exported_it_runs_with_jax_alone(tmp_path, name):
    quantized = layer(CONFIGS[name])
    made = export(quantized, (torch.randn(2, 64),), dynamic_shapes=({0: Dim("batch")},))
    run = load_without_torch(made.save(tmp_path / "model"))

    for batch in (1, 5):
        x = torch.randn(batch, 64)
        np.testing.assert_allclose(run(x.numpy()), quantized(x).detach(), rtol=1e-4, atol=1e-5)
    assert made.tensors["weight"].dtype in (torch.int8, torch.uint8)


def test_layers_may_be_left_out():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(48, 8))

    with pytest.raises(ValueError, match="`1`: groups of 32 do not divide 48 columns"):
        quantize_(model, Int4(group_size=32))
    quantize_(model, Int4(group_size=32), lambda name, linear: linear.in_features % 32 == 0)

    assert [type(m).__name__ for m in model] == ["Int4Linear", "Linear"]


def _largest_float(text: str) -> int:
    """Bytes of the largest array of floats that the program names."""
    sizes = {"f32": 4, "bf16": 2, "f16": 2}
    found = [
        sizes[kind] * torch.Size(map(int, dims.split(","))).numel()
        for kind, dims in re.findall(r"\b(f32|bf16|f16)\[([\d,]+)\]", text)
    ]
    return max(found)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [1, 16])
def test_no_program_for_the_cpu_makes_a_weight_wide(name, rows):
    quantized = layer(CONFIGS[name], 1024, 2048, bias=False)
    tensors = [rules_input(t) for t in quantized.buffers()]
    x = jax.ShapeDtypeStruct((rows, 1024), jnp.float32)

    compiled = jax.jit(RULES[name]).lower(x, *tensors).compile()

    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text is not None and memory is not None
    assert _largest_float(text) <= 2 << 20
    assert memory.temp_size_in_bytes < 1024 * 2048 * 2


def rules_input(tensor: Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor.shape), to_jax(tensor.dtype))
