"""Programs for a TPU keep weights small, compiled ahead of time (by libtpu, which needs no TPU)."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import torch_pjrt
from torch_pjrt_quant import Float8, Int4, Int8, Nf4, quantize_
from torch_pjrt_quant.linear import Config

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None
    or importlib.util.find_spec("torch_pjrt_tpu") is None,
    reason="libtpu or torch-pjrt-tpu is not installed",
)
NUMBERS = 2048 * 4096

#   a weight's bytes for each number
CONFIGS: dict[str, tuple[Config, float]] = {
    "int8": (Int8(), 1),
    "int8 dynamic": (Int8(dynamic=True), 1),
    "int4": (Int4(group_size=128), 0.5),
    "nf4": (Nf4(group_size=128), 0.5),
    "float8": (Float8(), 1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tpus_program_holds_the_small_weight_alone(name):
    config, per_number = CONFIGS[name]
    model = quantize_(torch.nn.Sequential(torch.nn.Linear(4096, 2048, bias=False)), config)
    model.to("pjrt", torch.bfloat16)

    ahead = torch_pjrt.compile_for(
        "v5e:1x1", model, torch.empty(1, 4096, dtype=torch.bfloat16, device="meta")
    )

    scales = 2 * 4 * NUMBERS / 128
    assert ahead.argument_bytes < NUMBERS * per_number + scales + (1 << 16)
    # A wide weight has 2 bytes for each number.
    assert ahead.temporary_bytes < NUMBERS / 4
