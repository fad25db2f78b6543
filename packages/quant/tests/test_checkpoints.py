"""What other tools have quantized is loaded with the numbers that their formats define."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import torch
from small_checkpoints import COLUMNS, GROUP, ROWS, Model, drawn, loaded, others, words
from torch import Tensor

from torch_pjrt_quant import QuantizedLinear, load_gguf_, load_quantized_, packing


def wide(numbers: Tensor, scale: Tensor, zero: Tensor, places: Tensor) -> Tensor:
    """The formats' definition, column by column: places[column] is its group."""
    columns = [
        (numbers[:, c] - zero[:, places[c]]).float() * scale[:, places[c]].float()
        for c in range(COLUMNS)
    ]
    return torch.stack(columns, 1)


def checked(model: Model, weight: Tensor, given: dict[str, Tensor]) -> None:
    """The weight is exactly this one, and the module computes with it."""
    layer = model.up
    assert isinstance(layer, QuantizedLinear)
    assert torch.equal(layer.dequantized().cpu(), weight)
    x = torch.randn(3, COLUMNS)
    normed = torch.nn.functional.layer_norm(x, (COLUMNS,), given["norm.weight"], given["norm.bias"])
    wanted = torch.nn.functional.linear(normed, weight, given["up.bias"].float())
    torch.testing.assert_close(model(x.to("pjrt")).cpu(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq(tmp_path, version, ordered):
    numbers, scale, zero = drawn()
    places = torch.arange(COLUMNS) // GROUP
    if ordered:
        places = places[torch.randperm(COLUMNS)]
    given = others()
    stored = zero - int(version == "gptq")
    tensors = {
        **given,
        "up.qweight": words(numbers).T,
        "up.qzeros": words(stored.T),
        "up.scales": scale.T,
        "up.g_idx": places.to(torch.int32),
    }

    model = loaded(
        tensors, {"quant_method": "gptq", "bits": 4, "checkpoint_format": version}, tmp_path
    )

    checked(model, wide(numbers, scale, zero, places), given)


def test_awq(tmp_path):
    numbers, scale, zero = drawn()
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    given = others()
    tensors = {
        **given,
        "up.qweight": words(numbers.T, order),
        "up.qzeros": words(zero.T, order),
        "up.scales": scale.T,
    }

    model = loaded(tensors, {"quant_method": "awq", "bits": 4}, tmp_path)

    checked(model, wide(numbers, scale, zero, torch.arange(COLUMNS) // GROUP), given)


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_of_four_bits(tmp_path, symmetric):
    numbers, scale, zero = drawn()
    zero = torch.full_like(zero, 8) if symmetric else zero
    given = others()
    tensors = {
        **given,
        "up.weight_packed": words(numbers),
        "up.weight_scale": scale,
        "up.weight_shape": torch.tensor([ROWS, COLUMNS]),
    }
    if not symmetric:
        tensors["up.weight_zero_point"] = words(zero.T).T

    model = loaded(tensors, {"quant_method": "compressed-tensors"}, tmp_path)

    checked(model, wide(numbers, scale, zero, torch.arange(COLUMNS) // GROUP), given)


@pytest.mark.skipif(
    importlib.util.find_spec("compressed_tensors") is None,
    reason="compressed-tensors is not installed",
)
@pytest.mark.filterwarnings("ignore")
def test_words_are_those_of_compressed_tensors():
    import compressed_tensors.compressors as theirs  # pyright: ignore[reportMissingImports]

    pack = getattr(theirs, "pack_to_int32", None)
    if pack is None:
        from compressed_tensors.compressors.pack_quantized import (  # pyright: ignore[reportMissingImports]
            pack_to_int32 as pack,
        )
    numbers = torch.randint(0, 16, (ROWS, COLUMNS))

    assert torch.equal(pack((numbers - 8).to(torch.int8), 4), words(numbers))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("per_row", [True, False])
def test_compressed_tensors_of_eight_bits(tmp_path, dtype, per_row):
    weight = torch.randint(-100, 100, (ROWS, COLUMNS)).to(dtype)
    scale = torch.rand(ROWS, 1) if per_row else torch.rand(1)
    given = others()
    tensors = {**given, "up.weight": weight, "up.weight_scale": scale}

    model = loaded(tensors, {"quant_method": "compressed-tensors"}, tmp_path)

    checked(model, weight.float() * scale, given)


@pytest.mark.parametrize("shape", [(1, 1), (ROWS,), ()], ids=str)
def test_scales_of_eight_bits_may_have_any_shape_of_as_many(tmp_path, shape):
    weight = torch.randint(-100, 100, (ROWS, COLUMNS)).to(torch.int8)
    scale = torch.rand(shape)
    given = others()
    tensors = {**given, "up.weight": weight, "up.weight_scale": scale}

    model = loaded(tensors, {"quant_method": "compressed-tensors"}, tmp_path)

    checked(model, weight.float() * scale.reshape(-1, 1), given)


#   what the configuration says of inputs, whether they become numbers of 8 bits
ACTIVATIONS: list[tuple[Any, bool]] = [
    (None, False),
    ({"num_bits": 8, "dynamic": True, "strategy": "token", "symmetric": True}, True),
    ({"num_bits": 8, "dynamic": False, "strategy": "tensor", "symmetric": True}, True),
    ({"num_bits": 8, "dynamic": True, "strategy": "token", "symmetric": False}, False),
    ({"num_bits": 4, "dynamic": True, "symmetric": True}, False),
]


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("activations", "dynamic"), ACTIVATIONS)
def test_inputs_are_quantized_where_compressed_tensors_says_so(
    tmp_path, dtype, activations, dynamic
):
    weight = torch.randint(-100, 100, (ROWS, COLUMNS)).to(dtype)
    scale = torch.rand(ROWS, 1) * 0.01
    given = others()
    tensors = {**given, "up.weight": weight, "up.weight_scale": scale}
    group = {"weights": {"num_bits": 8}, "input_activations": activations, "targets": ["Linear"]}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}

    layer: Any = loaded(tensors, config, tmp_path).up

    assert layer.dynamic is dynamic
    x = torch.randn(3, COLUMNS)
    wanted = torch.nn.functional.linear(x, weight.float() * scale, given["up.bias"])
    got = layer(x.to("pjrt")).cpu()
    assert (got - wanted).norm() / wanted.norm() < (0.05 if dynamic else 1e-5)


#   how a block of float8 is written: method, its configuration, the name of the scales
BLOCKS: list[tuple[str, dict[str, Any], str]] = [
    ("fp8", {"weight_block_size": [8, 32]}, "weight_scale_inv"),
    (
        "compressed-tensors",
        {"config_groups": {"group_0": {"weights": {"block_structure": [8, 32]}}}},
        "weight_scale",
    ),
]


@pytest.mark.parametrize(("method", "more", "name"), BLOCKS)
@pytest.mark.parametrize("n_rows", [16, 20])
def test_blocks_of_float8(tmp_path, method, more, name, n_rows):
    weight = torch.randn(n_rows, COLUMNS).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-n_rows // 8), COLUMNS // 32)
    with torch.device("meta"):
        model: Any = torch.nn.Sequential(torch.nn.Linear(COLUMNS, n_rows, bias=False))

    load_quantized_(
        model,
        {"0.weight": weight, f"0.{name}": scale},
        config={"quant_method": method, **more},
    )

    wide = torch.stack(
        [weight[r].float() * scale[r // 8].repeat_interleave(32) for r in range(n_rows)]
    )
    assert torch.equal(model[0].dequantized().cpu(), wide)
    x = torch.randn(3, COLUMNS)
    there = x.to("pjrt").requires_grad_()
    got = model(there)
    got.sum().backward()
    torch.testing.assert_close(got.detach().cpu(), x @ wide.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(there.grad.cpu(), wide.sum(0).expand(3, -1), rtol=1e-4, atol=1e-4)


def test_int8_of_bitsandbytes(tmp_path):
    weight = torch.randint(-127, 128, (ROWS, COLUMNS)).to(torch.int8)
    largest = torch.rand(ROWS)
    given = others()
    tensors = {**given, "up.weight": weight, "up.SCB": largest}

    model = loaded(tensors, {"quant_method": "bitsandbytes", "load_in_8bit": True}, tmp_path)

    checked(model, weight.float() * (largest / 127)[:, None], given)


@pytest.mark.parametrize("nested", [False, True])
def test_nf4_of_bitsandbytes(tmp_path, nested):
    numbers = torch.randint(0, 16, (ROWS, COLUMNS), dtype=torch.uint8)
    pairs = numbers.view(-1, 2)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": GROUP, "shape": [ROWS, COLUMNS]}
    given = others()
    n_blocks = ROWS * COLUMNS // GROUP
    tensors = {**given, "up.weight": (pairs[:, :1] << 4) | pairs[:, 1:]}
    if nested:
        state |= {"nested_blocksize": 8, "nested_offset": 0.25}
        codes, table = torch.randint(0, 256, (n_blocks,)), torch.linspace(-1, 1, 256)
        factors = torch.rand(n_blocks // 8)
        absmax = table[codes] * factors.repeat_interleave(8) + 0.25
        tensors |= {
            "up.weight.absmax": codes.to(torch.uint8),
            "up.weight.nested_absmax": factors,
            "up.weight.nested_quant_map": table,
        }
    else:
        absmax = torch.rand(n_blocks)
        tensors["up.weight.absmax"] = absmax
    text = json.dumps(state).encode()
    tensors["up.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(text), dtype=torch.uint8)

    model = loaded(tensors, {"quant_method": "bitsandbytes"}, tmp_path)

    values = torch.tensor(packing.NF4)[numbers.long()].view(-1, GROUP) * absmax[:, None]
    checked(model, values.view(ROWS, COLUMNS), given)


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_gguf(tmp_path, kind):
    import gguf  # pyright: ignore[reportMissingImports]

    given = others()
    quantized = getattr(gguf.GGMLQuantizationType, kind)
    data = gguf.quants.quantize(torch.randn(ROWS, COLUMNS).numpy(), quantized)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("blk.up.weight", data, raw_dtype=quantized)
    for name, tensor in given.items():
        writer.add_tensor(f"blk.{name}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with torch.device("meta"):
        model = Model()

    load_gguf_(model, tmp_path / "model.gguf", lambda name: name.removeprefix("blk."))

    checked(model, torch.from_numpy(gguf.quants.dequantize(data, quantized)), given)


#   kind, bytes of a block, where its float16 are, the numbers are exact, our layer
K_QUANTS: list[tuple[str, int, list[int], bool, str]] = [
    ("Q2_K", 84, [80, 82], False, "Int4Linear"),
    ("Q3_K", 110, [108], True, "Int4Linear"),
    ("Q4_K", 144, [0, 2], False, "Int4Linear"),
    ("Q6_K", 210, [208], True, "Int8Linear"),
]


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
@pytest.mark.parametrize(("kind", "n_bytes", "floats", "exact", "layer"), K_QUANTS)
def test_k_quants_stay_small(kind, n_bytes, floats, exact, layer):
    import gguf  # pyright: ignore[reportMissingImports]

    from torch_pjrt_quant.checkpoints.loading import GGUF

    rows, columns = 6, 512
    blocks = torch.randint(0, 256, (rows * columns // 256, n_bytes), dtype=torch.uint8)
    for place in floats:
        drawn = (torch.rand(len(blocks), 1) * 0.1 + 0.001).half()
        blocks[:, place : place + 2] = drawn.view(torch.uint8)
    raw = blocks.view(rows, -1)
    wanted = gguf.quants.dequantize(raw.numpy(), getattr(gguf.GGMLQuantizationType, kind))

    made = GGUF[kind](raw, (columns, rows))

    assert type(made).__name__ == layer
    got, weight = made.dequantized(), torch.from_numpy(wanted)
    if exact:
        assert torch.equal(got, weight)
    largest = weight.abs().max().item()
    torch.testing.assert_close(got, weight, rtol=0, atol=1e-6 * largest)
    x = torch.randn(3, columns)
    there = made.to("pjrt")(x.to("pjrt")).cpu()
    torch.testing.assert_close(there, x @ weight.T, rtol=1e-4, atol=1e-4 * largest)


class Tied(torch.nn.Module):
    """What is looked up and what is given out is one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(ROWS, COLUMNS)
        self.up = torch.nn.Linear(COLUMNS, COLUMNS, bias=False)
        self.head = torch.nn.Linear(COLUMNS, ROWS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("angles", torch.arange(4.0), persistent=False)


@pytest.mark.parametrize("stored", ["embedding.weight", "head.weight"])
@pytest.mark.parametrize("more", [{}, {"angles": torch.arange(4.0)}], ids=["", "angles"])
def test_what_is_tied_is_one_weight_that_is_loaded(stored, more):
    weight, model = torch.rand(ROWS, COLUMNS), Tied()
    small = {
        "up.weight": torch.ones(COLUMNS, COLUMNS, dtype=torch.int8),
        "up.weight_scale": torch.ones(COLUMNS, 1),
    }

    load_quantized_(
        model, {stored: weight, **small, **more}, config={"quant_method": "compressed-tensors"}
    )

    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight.detach().cpu(), weight)
    assert isinstance(model.up, QuantizedLinear)
