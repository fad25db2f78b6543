"""A checkpoint that does not fit the module is an error, or a warning, that says where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_checkpoints import COLUMNS, ROWS, Model, drawn, loaded, others, words
from torch import Tensor

from torch_pjrt_quant import load_quantized_

COMPRESSED = {"quant_method": "compressed-tensors"}
SMALL = {
    "up.weight": torch.ones(ROWS, COLUMNS, dtype=torch.int8),
    "up.weight_scale": torch.ones(ROWS, 1),
}
NORM = {"norm.weight": torch.ones(COLUMNS), "norm.bias": torch.ones(COLUMNS)}
BIAS = {"up.bias": torch.ones(ROWS)}
#   configuration, the tensors, what the error says
UNFIT: dict[str, tuple[dict[str, Any], dict[str, Tensor], str]] = {
    "nothing": (COMPRESSED, {}, r"lacks norm\.weight, norm\.bias, up\.weight, up\.bias"),
    "another prefix": (
        COMPRESSED,
        {f"model.{name}": t for name, t in {**SMALL, **NORM, **BIAS}.items()},
        r"lacks norm\.weight.*; it has model\..*, which the module has not",
    ),
    "another method": (
        {"quant_method": "gptq", "bits": 4},
        {**SMALL, **NORM, **BIAS},
        r"`up\.weight` is torch\.int8 in the checkpoint, and a tensor of floats is expected",
    ),
    "other sizes": (
        COMPRESSED,
        {**SMALL, **NORM, **BIAS, "norm.weight": torch.ones(8)},
        r"size mismatch for norm\.weight",
    ),
    "no bias": (COMPRESSED, {**SMALL, **NORM}, r"the checkpoint lacks up\.bias"),
    "no norm": (COMPRESSED, {**SMALL, **BIAS}, r"lacks norm\.weight, norm\.bias"),
    "eight bits": ({"quant_method": "gptq", "bits": 8}, {}, "8 bits a number, and only 4"),
    "gemv": ({"quant_method": "awq", "version": "gemv"}, {}, "version 'gemv', and only 'gemm'"),
    "short words": (
        {"quant_method": "awq"},
        {
            "up.qweight": torch.zeros(COLUMNS, 1, dtype=torch.int32),
            "up.qzeros": torch.zeros(2, 1, dtype=torch.int32),
            "up.scales": torch.ones(2, ROWS),
        },
        r"`up` is no layer of 16 x 64 as awq writes it: qweight torch\.int32\[64, 1\]",
    ),
    "other rows": (
        COMPRESSED,
        {"up.weight": torch.ones(8, COLUMNS, dtype=torch.int8), "up.weight_scale": torch.ones(1)},
        r"`up` is no layer of 16 x 64 as compressed-tensors .*weight torch\.int8\[8, 64\]",
    ),
    "scales for other rows": (
        COMPRESSED,
        {"up.weight": SMALL["up.weight"], "up.weight_scale": torch.ones(8, 1)},
        r"`up` is no layer of 16 x 64",
    ),
    "int16": (
        COMPRESSED,
        {"up.weight": SMALL["up.weight"].short(), "up.weight_scale": torch.ones(1)},
        r"`up`: numbers of torch\.int16, and int8 or float8_e4m3fn are read",
    ),
    "odd blocks": (
        {"quant_method": "fp8", "weight_block_size": [8, 48]},
        {
            "up.weight": torch.ones(ROWS, COLUMNS).to(torch.float8_e4m3fn),
            "up.weight_scale_inv": torch.ones(2, 2),
        },
        "`up`: scales .*whole blocks in a row",
    ),
    "blocks of int8": (
        {**COMPRESSED, "weight_block_size": [8, 32]},
        {"up.weight": SMALL["up.weight"], "up.weight_scale": torch.ones(2, 2)},
        r"`up`: blocks of torch\.int8, and only those of float8_e4m3fn",
    ),
    "FP4": (
        {"quant_method": "bitsandbytes"},
        {
            "up.weight": torch.ones(512, 1, dtype=torch.uint8),
            "up.weight.quant_state.bitsandbytes__fp4": torch.ones(1, dtype=torch.uint8),
        },
        "`up`: numbers of FP4, and only those of NF4",
    ),
    "no state": (
        {"quant_method": "bitsandbytes"},
        {
            "up.weight": torch.ones(512, 1, dtype=torch.uint8),
            "up.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(b"{}")).byte(),
        },
        "`up` is no layer of 16 x 64 as bitsandbytes writes it",
    ),
}


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("case", UNFIT)
def test_a_checkpoint_that_does_not_fit_is_an_error_that_says_where(case, device):
    config, tensors, words = UNFIT[case]
    with torch.device(device):
        model = Model()

    with pytest.raises(ValueError, match=words):
        load_quantized_(model, tensors, config=config)


def test_what_the_module_has_not_is_a_warning():
    tensors = {**SMALL, **NORM, **BIAS, "head.weight": torch.ones(1)}

    with pytest.warns(UserWarning, match=r"has head\.weight, which the module has not"):
        load_quantized_(Model(), tensors, config=COMPRESSED)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_bias_that_the_layer_has_not_counts_unless_it_is_zero(value):
    model: Any = torch.nn.Sequential(torch.nn.Linear(COLUMNS, ROWS, bias=False))
    tensors = {name.replace("up", "0"): t for name, t in SMALL.items()}

    load_quantized_(model, {**tensors, "0.bias": torch.full((ROWS,), value)}, config=COMPRESSED)

    assert (model[0].bias is not None) == bool(value)


def test_what_is_missing_is_named(tmp_path):
    numbers, scale, _ = drawn()
    tensors = {"up.weight_packed": words(numbers), "up.weight_scale": scale}

    with pytest.raises(ValueError, match=r"lacks norm\.weight, norm\.bias"):
        loaded(tensors, {"quant_method": "compressed-tensors"}, tmp_path)


def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'aqlm', and should be one of gptq, awq"):
        loaded(others(), {"quant_method": "aqlm"}, tmp_path)
