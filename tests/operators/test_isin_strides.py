"""What `isin` gives is contiguous, as on CPU, however its elements lie."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

Tensor = torch.Tensor

LAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "as made": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1),
    "in another order": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "every other": lambda x: x[..., ::2],
    "expanded": lambda x: x[..., :1].expand(x.shape),
}
TESTS: dict[str, Tensor | int] = {
    "a number": 3,
    "a tensor of no dims": torch.tensor(3),
    "few": torch.tensor([1, 3]),
    "a matrix": torch.arange(6).reshape(2, 3),
    "many": torch.arange(0, 400, 2),
    "none": torch.tensor([], dtype=torch.int64),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("tests", TESTS)
@pytest.mark.parametrize("lay", LAYS)
def test_isin_is_that_of_the_cpu_with_its_strides(lay: str, tests: str) -> None:
    sought = TESTS[tests]
    for shape in ((4,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (0, 3)):
        x = (torch.arange(math.prod(shape)) % 7).reshape(shape)
        expected = torch.isin(LAYS[lay](x), sought)

        found = torch.isin(
            LAYS[lay](x.to("pjrt")), sought.to("pjrt") if isinstance(sought, Tensor) else sought
        )

        assert found.stride() == expected.stride()
        assert found.tolist() == expected.tolist()


def test_isin_of_images_in_channels_last_is_contiguous() -> None:
    x = torch.arange(120).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)

    found = torch.isin(x.to("pjrt"), 3)

    assert found.stride() == torch.isin(x, 3).stride()
