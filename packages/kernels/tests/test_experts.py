"""The grouped product of `transformers` has a rule: rows of each group times its weight, the rest zeros."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from torch_pjrt_kernels import experts

NAME = "transformers::grouped_mm_fallback"


@pytest.fixture
def op() -> Any:
    """The operator of `transformers`; where that is not installed, one with its name and meaning."""
    torch.zeros(1, device="pjrt")  # starts the device
    try:
        import transformers.integrations.moe  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
            torch.library.custom_op(NAME, _by_group, mutates_args=())
            torch.library.register_fake(NAME, lambda x, w, offs: x.new_empty(len(x), w.shape[2]))
            experts._register(ModuleType("moe"))
    return torch.ops.transformers.grouped_mm_fallback


def _by_group(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    output, start = input.new_zeros(len(input), weight.shape[2]), 0
    for group, end in enumerate(offs.tolist()):
        output[start:end] = input[start:end] @ weight[group]
        start = end
    return output


def test_rows_are_multiplied_by_the_weight_of_their_group(op: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(s, generator=generator) for s in ((10, 8), (4, 8, 5)))
    offs = torch.tensor([4, 4, 9, 9], dtype=torch.int32)

    found = op(x.to("pjrt"), w.to("pjrt"), offs.to("pjrt"))

    torch.testing.assert_close(found.cpu(), _by_group(x, w, offs), rtol=1e-5, atol=1e-5)
    assert not found[9:].any()
