"""PyTorch's `quantized_decomposed` operators give on the device what they give on the CPU, without a read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt_quant.pt2e.decomposed import RULES

quantized = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)
UINT8 = (0, 255, torch.uint8)


def one(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor([value], dtype=dtype)


def numbers(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


X, SCALE, ZERO = torch.randn(6, 8) * 3, one(0.037, torch.float64), one(-5, torch.int64)
SCALES, ZEROS = torch.rand(8) + 0.01, torch.randint(-9, 9, (8,))
TOKEN_SCALES, TOKEN_ZEROS = torch.rand(6, 1).double() + 0.01, torch.randint(-9, 9, (6, 1))
GROUP_SCALES, GROUP_ZEROS = torch.rand(6, 2) + 0.01, torch.randint(-9, 9, (6, 2))

#   overload, its arguments
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("quantize_per_tensor.default", (X, 0.037, -5, *INT8)),
    ("quantize_per_tensor.default", (X.bfloat16(), 0.037, 3, *UINT8)),
    ("quantize_per_tensor.tensor", (X, SCALE, ZERO, *INT8)),
    ("quantize_per_tensor.tensor", (X, SCALE.float(), ZERO.int(), *INT8)),
    (
        "quantize_per_tensor.tensor2",
        (X, SCALE, ZERO, torch.tensor(-100), torch.tensor(90), torch.int8),
    ),
    ("dequantize_per_tensor.default", (numbers(6, 8), 0.037, -5, *INT8)),
    ("dequantize_per_tensor.tensor", (numbers(6, 8), SCALE, ZERO, *INT8)),
    (
        "dequantize_per_tensor.tensor2",
        (numbers(6, 8), SCALE, ZERO, torch.tensor(-128), torch.tensor(127), torch.int8),
    ),
    ("choose_qparams.tensor", (X, -128, 127, 1e-7, torch.int8)),
    ("choose_qparams.tensor", (X.abs(), 0, 255, 1e-7, torch.uint8)),
    ("choose_qparams.tensor", (X * 0, -128, 127, 1e-7, torch.int8)),
    ("choose_qparams.tensor", (X.view(2, 3, 4, 2), -128, 127, 1e-7, torch.int8)),
    ("choose_qparams.tensor", (X.view(1, 2, 3, 4, 2) - 9, -128, 127, 1e-7, torch.int8)),
    ("choose_qparams_symmetric.tensor", (X.view(2, 3, 8), -127, 127, 1e-7, torch.int8)),
    ("choose_qparams_symmetric.tensor", (X, -127, 127, 1e-7, torch.int8)),
    ("choose_qparams_symmetric.tensor", (X, 0, 255, 1e-7, torch.uint8)),
    ("choose_qparams_per_token.default", (X, torch.int8)),
    ("choose_qparams_per_token_asymmetric.default", (X, torch.int8)),
    ("choose_qparams_per_token_asymmetric.default", (X.abs() + 1, torch.int8)),
    ("quantize_per_channel.default", (X, SCALES, ZEROS, 1, *INT8)),
    ("quantize_per_channel.default", (X.T.contiguous(), SCALES.double(), ZEROS, 0, *INT8)),
    ("dequantize_per_channel.default", (numbers(6, 8), SCALES, ZEROS, 1, *INT8)),
    ("dequantize_per_channel.default", (numbers(6, 8), SCALES, None, 1, *INT8)),
    ("quantize_per_token.default", (X, TOKEN_SCALES, TOKEN_ZEROS, *INT8)),
    (
        "dequantize_per_token.default",
        (numbers(6, 8), TOKEN_SCALES, TOKEN_ZEROS, *INT8, torch.float32),
    ),
    ("quantize_per_channel_group.default", (X, GROUP_SCALES, GROUP_ZEROS, -8, 7, torch.int8, 4)),
    (
        "dequantize_per_channel_group.default",
        (numbers(6, 8), GROUP_SCALES, GROUP_ZEROS, *INT8, 4, torch.float32),
    ),
    (
        "dequantize_per_channel_group.default",
        (numbers(6, 8), GROUP_SCALES, None, *INT8, 4, torch.float32),
    ),
    ("convert_element_type.no_fuse", (X, torch.bfloat16)),
]
# Their meta functions say float64 and int64, and so do we; their bodies give the dtype of the input.
META_DTYPES = {"choose_qparams_per_token.default"}


@pytest.mark.parametrize(("name", "args"), CALLS, ids=[f"{i}-{c[0]}" for i, c in enumerate(CALLS)])
def test_values_and_dtypes_are_those_of_the_cpu(name, args):
    packet, _, overload = name.partition(".")
    op = getattr(getattr(quantized, packet), overload)
    wanted = op(*args)
    there = [a.to("pjrt") if isinstance(a, Tensor) else a for a in args]
    torch_pjrt.sync()
    before = counters.syncs.total(), counters.fallbacks.total()

    got = op(*there)

    assert (counters.syncs.total(), counters.fallbacks.total()) == before
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for ours, theirs in pairs:
        torch.testing.assert_close(
            ours.cpu(), theirs, rtol=1e-6, atol=1e-7, check_dtype=name not in META_DTYPES
        )


def test_each_rule_has_a_call():
    assert {name for name, _ in CALLS} == set(RULES)
