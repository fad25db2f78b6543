"""What TPUs and GPUs compute with weights that have a scale for each group is what the CPU computes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_pjrt_quant import grouped, packing, rules

COLUMNS, ROWS = 96, 80


def int4(symmetric: bool, size: int) -> tuple[Any, ...]:
    packed, scale, zero = packing.to_int4(weight(), size, symmetric=symmetric)
    wide = packing.from_int4(packed, scale, zero)
    parts = (packed, scale) if zero is None else (packed, scale, zero)
    return parts, grouped.of_int4, rules.widened_int4, wide


def nf4(size: int) -> tuple[Any, ...]:
    parts = packing.to_nf4(weight(), size)
    return parts, grouped.of_nf4, rules.widened_nf4, packing.from_nf4(*parts)


def eight_bits(dtype: torch.dtype, size: int) -> tuple[Any, ...]:
    groups = weight().view(ROWS, -1, size)
    scale = groups.abs().amax(-1) / 100
    numbers = (groups / scale[..., None]).round().flatten(1).to(dtype)
    return (numbers, scale), grouped.of_int8, rules.widened, packing.from_int8(numbers, scale)


def weight() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


WEIGHTS = {
    "int4": lambda: int4(False, 16),
    "int4, one group": lambda: int4(False, COLUMNS),
    "int4 symmetric": lambda: int4(True, 32),
    "nf4": lambda: nf4(32),
    "int8": lambda: eight_bits(torch.int8, 32),
    "float8": lambda: eight_bits(torch.float8_e4m3fn, 32),
}


def array(tensor: torch.Tensor) -> Any:
    if tensor.dtype is torch.float8_e4m3fn:
        return jnp.asarray(tensor.view(torch.uint8).numpy()).view(jnp.float8_e4m3fn)
    return jnp.asarray(tensor.numpy())


@pytest.mark.parametrize("rows", [0, 1, 3, grouped.FEW_ROWS, grouped.FEW_ROWS + 1])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_all_ways_are_products_with_the_weight_that_the_format_means(kind, rows, monkeypatch):
    monkeypatch.setattr(grouped, "PART", 1000)  # so that there are parts, of different sizes
    parts, numbers, widened, wide = WEIGHTS[kind]()
    x = torch.randn(rows, COLUMNS)
    given = [array(p) for p in parts]

    ways = {
        "TPU": grouped.grouped(jnp.asarray(x.numpy()), given, numbers),
        "GPU": rules.on_gpus(jnp.asarray(x.numpy()), given, widened(jnp.float32)),
    }

    for name, got in ways.items():
        np.testing.assert_allclose(got, x @ wide.T, rtol=1e-4, atol=1e-4, err_msg=name)


def test_values_of_nf4_are_chosen_by_their_numbers():
    wanted = [float(np.float32(v)) for v in packing.NF4]

    assert grouped.nf4_values(jnp.arange(16, dtype=jnp.uint8)).tolist() == wanted


def test_numbers_that_are_not_finite_stay_in_their_rows():
    (packed, scale, zero), numbers, _, _ = WEIGHTS["int4"]()
    x = torch.randn(3, COLUMNS)
    x[1, 5] = float("inf")

    got = grouped.grouped(
        jnp.asarray(x.numpy()), [array(p) for p in (packed, scale, zero)], numbers
    )

    assert np.isfinite(got).all(1).tolist() == [True, False, True]
