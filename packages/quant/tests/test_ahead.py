"""Programs for a TPU and a GPU keep weights small, compiled ahead of time by compilers that need neither."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch

import torch_pjrt
from torch_pjrt_quant import Float8, Int4, Int8, Nf4, operators, quantize_
from torch_pjrt_quant.linear import Config

ROWS, COLUMNS = 2048, 4096
NUMBERS = ROWS * COLUMNS
# What is widened at a time: a tile of rows.
TILE_BYTES = 1 << 20

#   target, the packages that compile for it
TARGETS = {"v5e:2x2": ("libtpu", "torch_pjrt_tpu"), "h100": ("jax_cuda13_plugin", "torch_pjrt_gpu")}
#   a weight's bytes for each number
CONFIGS: dict[str, tuple[Config, float]] = {
    "int8": (Int8(), 1),
    "int8 dynamic": (Int8(dynamic=True), 1),
    "int4": (Int4(group_size=128), 0.5),
    "nf4": (Nf4(group_size=128), 0.5),
    "float8": (Float8(), 1),
    "float8 dynamic": (Float8(dynamic=True), 1),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_program_holds_the_small_weight_alone(name, target):
    if lacking := [p for p in TARGETS[target] if importlib.util.find_spec(p) is None]:
        pytest.skip(f"{' and '.join(lacking)}: not installed, so nothing compiles for {target}")
    config, per_number = CONFIGS[name]
    model = quantize_(torch.nn.Sequential(torch.nn.Linear(COLUMNS, ROWS, bias=False)), config)
    model.to("pjrt", torch.bfloat16)

    ahead = torch_pjrt.compile_for(
        target, model, torch.empty(1, COLUMNS, dtype=torch.bfloat16, device="meta")
    )

    scales = 2 * 4 * NUMBERS / 128
    assert ahead.argument_bytes < NUMBERS * per_number + scales + (1 << 16)
    # A wide weight has 2 bytes for each number.
    assert ahead.temporary_bytes < NUMBERS / 4
    assert _largest_floats(ahead.text()) <= TILE_BYTES
    # A loop over tiles would copy all of the weight in each step (TPU), or launch kernels in each (GPU).
    assert " while(" not in ahead.text()


@pytest.mark.slow
@pytest.mark.parametrize("spec", [("model", None), (None, "model")])
def test_weights_that_are_spread_over_chips_stay_there(spec):
    for package in ("libtpu", "torch_pjrt_spmd"):
        pytest.importorskip(package, reason="nothing compiles for a mesh of TPUs")
    spmd = importlib.import_module("torch_pjrt_spmd")
    mesh = spmd.Mesh((4,), ("model",), target="v5e:2x2")

    def like(*shape: int, of: tuple[str | None, ...], dtype: torch.dtype) -> torch.Tensor:
        return spmd.mark_sharding(torch.empty(*shape, device="meta", dtype=dtype), mesh, of)

    ahead = torch_pjrt.compile_for(
        "v5e:2x2",
        operators.linear_int4,
        like(1, COLUMNS, of=(None, spec[1]), dtype=torch.bfloat16),
        like(ROWS, COLUMNS // 2, of=spec, dtype=torch.uint8),
        like(ROWS, COLUMNS // 128, of=spec, dtype=torch.float32),
        like(ROWS, COLUMNS // 128, of=spec, dtype=torch.uint8),
    )

    text = ahead.text()
    assert not any(f" {name}" in text for name in ("all-gather", "all-to-all"))
    assert text.count(" all-reduce") == (spec[1] is not None)


def _largest_floats(text: str) -> int:
    """Bytes of the largest array of floats that is in memory, so that no fusion alone computes with it."""
    sizes = {"f32": 4, "bf16": 2, "f16": 2}
    computations = re.split(r"\n\n", text)
    in_memory = [c for c in computations if not re.match(r"\s*%?\w*fused", c)]
    assert len(in_memory) < len(computations)
    return max(
        sizes[kind] * torch.Size(map(int, dims.split(","))).numel()
        for computation in in_memory
        for kind, dims in re.findall(r"\b(f32|bf16|f16)\[([\d,]+)\]", computation)
    )
