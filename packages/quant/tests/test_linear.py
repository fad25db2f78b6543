"""Products with small weights are those with the weights they stand for, and no weight is made wide."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable
from typing import Any

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
    awq_,
    export,
    float8_training_,
    gptq_,
    packing,
    quantize_,
    rules,
)
from torch_pjrt_quant.exporting.load import load as load_without_torch
from torch_pjrt_quant.linear import Config, Int4Linear

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


def test_each_byte_of_float8_is_its_number():
    numbers = torch.arange(256, dtype=torch.uint8)

    got = rules.float8_of(jnp.asarray(numbers.numpy()))

    wanted = numbers.view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


def test_zeros_are_bytes():
    model = torch.nn.Sequential(torch.nn.Linear(256, 16), torch.nn.Linear(16, 256))
    calibration = [torch.randn(300, 256, device="pjrt")]
    made = {
        "to nearest": lambda m: quantize_(m, Int4(16)),
        "GPTQ": lambda m: gptq_(m.to("pjrt"), calibration, Int4(16)),
        "AWQ": lambda m: awq_(m.to("pjrt"), calibration, Int4(16)),
    }

    for way, make in made.items():
        for quantized in make(copy.deepcopy(model)):
            # Four bits a number, and of sixteen of them a scale of four bytes and a zero of one.
            held = sum(b.nbytes for n, b in quantized.named_buffers() if n in quantized.names)
            assert held == 16 * 256 // 2 + 16 * 256 // 16 * 5, way


@pytest.mark.parametrize("assign", [True, False])
def test_zeros_that_are_no_whole_numbers_are_loaded_as_they_are(assign):
    saved, loaded = layer(Int4(group_size=32)), layer(Int4(group_size=32))
    assert isinstance(saved, Int4Linear) and saved.zero is not None
    saved.zero = saved.zero.float() + 0.25

    loaded.load_state_dict(saved.state_dict(), assign=assign)

    assert torch.equal(loaded.dequantized(), saved.dequantized())
    bytes_again = layer(Int4(group_size=32))
    loaded.load_state_dict(bytes_again.state_dict(), assign=assign)
    assert torch.equal(loaded.dequantized(), bytes_again.dequantized())


@pytest.mark.parametrize("rows", [1 << 12, 4100, 4097])
def test_large_weights_go_by_tiles(rows):
    quantized = layer(Int4(group_size=32), 64, rows).to("pjrt")
    x = torch.randn(3, 64)

    got = quantized(x.to("pjrt")).cpu()

    assert quantized.bias is not None
    wanted = torch.nn.functional.linear(x, quantized.dequantized().cpu(), quantized.bias.cpu())
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


#   what a row of 256 numbers has: rows that are hard for digits of fixed size
HARD_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "random numbers": lambda x: x,
    "one large number": lambda x: x.index_fill(-1, torch.tensor(3), 1e4),
    "tiny numbers": lambda x: x * 1e-30,
    "huge numbers": lambda x: x * 1e30,
    "sizes of all kinds": lambda x: x * 10.0 ** torch.linspace(-20, 20, 256),
    "zeros": torch.zeros_like,
    "halves": lambda x: x.sign() * 63.5 / 127,
}


@pytest.mark.parametrize("count", [1, 2, 8, 9])
@pytest.mark.parametrize("rows", HARD_ROWS)
def test_few_rows_by_int8_are_as_exact_as_sums_of_float32(rows, count):
    quantized = layer(Int8(), 256, 40, bias=False)
    # Rows of one call have different sizes.
    x = HARD_ROWS[rows](torch.randn(count, 256)) * 2.0 ** torch.arange(count)[:, None]

    got = quantized.to("pjrt")(x.to("pjrt")).cpu().double()

    weight = quantized.dequantized().cpu().double()
    bound = x.abs().amax(-1, keepdim=True).double() * weight.abs().sum(-1) * 2**-22
    assert ((got - x.double() @ weight.T).abs() <= bound).all()


@pytest.mark.parametrize("number", [float("inf"), -float("inf"), float("nan"), 3e38])
def test_rows_that_are_not_finite_give_what_the_cpu_gives(number):
    quantized = layer(Int8())
    x = torch.randn(3, 64).index_fill(-1, torch.tensor(5), number)
    wanted = quantized(x)

    got = quantized.to("pjrt")(x.to("pjrt")).cpu()

    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


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


@pytest.mark.slow("rows")
@pytest.mark.parametrize("shape", [(64,), (0, 64), (2, 0, 64), (1, 1, 2, 64)], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_inputs_of_any_shape_have_results_and_gradients(name, shape):
    quantized = layer(CONFIGS[name])
    x = torch.randn(shape)

    found = []
    for device in ("cpu", "pjrt"):
        quantized.to(device).zero_grad()
        given = x.detach().to(device).requires_grad_()
        y = quantized(given)
        y.square().sum().backward()
        assert quantized.bias is not None and quantized.bias.grad is not None
        assert given.grad is not None
        found.append([t.detach().cpu() for t in (y, given.grad, quantized.bias.grad)])

    tolerance = 5e-2 if name == "float8 dynamic" else 1e-4  # bfloat16's products there
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)
    assert found[0][0].shape == (*shape[:-1], 48)


def encoder(layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    one = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return torch.nn.TransformerEncoder(one, layers).eval() if layers else one.eval()


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_encoders_of_pytorch_call_their_quantized_layers(layers, padded, device):
    """Their kernel for inference would read the weights as floats."""
    x = torch.randn(2, 5, 64)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
    model = quantize_(encoder(layers), Int8())
    wanted = model(x, src_key_padding_mask=mask)  # with gradients, layers are called

    with torch.no_grad():
        model.to(device)
        got = model(x.to(device), src_key_padding_mask=None if mask is None else mask.to(device))

    there = slice(None) if mask is None else ~mask
    torch.testing.assert_close(got.cpu()[there], wanted.detach()[there], rtol=1e-4, atol=1e-4)


CHANGES: dict[str, Callable[..., object]] = {
    "quantize_": lambda m, which=None: quantize_(m, Int8(), which),
    "float8_training_": float8_training_,
    "gptq_": lambda m, which=None: gptq_(m, [torch.ones(1, 64)], Int4(32), which),
    "awq_": lambda m, which=None: awq_(m, [torch.ones(1, 64)], Int4(32), which),
}


@pytest.mark.parametrize("way", CHANGES)
def test_where_no_layer_is_changed_it_is_said(way):
    change = CHANGES[way]

    with pytest.raises(ValueError, match=r"is a linear layer itself.*Sequential"):
        change(torch.nn.Linear(64, 64))
    with pytest.raises(ValueError, match=r"LayerNorm has no `torch\.nn\.Linear` \(of"):
        change(torch.nn.LayerNorm(64))
    with pytest.raises(ValueError, match="Linear` that `which` names"):
        change(torch.nn.Sequential(torch.nn.Linear(64, 64)), lambda *_: False)


def test_a_layer_with_two_names_stays_one():
    shared = torch.nn.Linear(64, 64)
    inner = torch.nn.Sequential(shared)
    model: Any = quantize_(torch.nn.Sequential(shared, inner), Int8())

    assert type(model[0]).__name__ == "Int8Linear" and model[1][0] is model[0]


def test_a_wide_weight_is_free_before_the_next_layer_is_quantized():
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    wide = [weakref.ref(m.weight) for m in model]
    alive = []

    class Counted(Int8):
        def layer(self, linear: torch.nn.Linear) -> QuantizedLinear:
            alive.append(sum(w() is not None for w in wide))
            return Int8().layer(linear)

    quantize_(model, Counted())

    assert alive == [3, 2, 1]


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
