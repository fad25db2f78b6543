"""`torch._foreach_copy_` copies between devices, whatever is where."""

from __future__ import annotations

from itertools import product

import pytest
import torch

PLACES = list(product(("cpu", "pjrt"), repeat=3))


@pytest.mark.parametrize("to", PLACES, ids="-".join)
def test_each_tensor_of_a_list_may_be_on_either_device(to: tuple[str, ...]) -> None:
    for places in PLACES:
        for non_blocking in (False, True):
            written = [torch.zeros(2, 3, device=device) for device in to]
            read = [
                torch.arange(6.0, device=places[0]).view(2, 3),
                torch.full((2, 3), 2, dtype=torch.int64, device=places[1]),
                torch.arange(3.0, device=places[2]).bfloat16(),
            ]
            views = [written[0].t(), *written[1:]]
            torch._foreach_copy_(views, [read[0].t(), *read[1:]], non_blocking)

            assert [x.device.type for x in written] == list(to)
            assert written[0].tolist() == [[0, 1, 2], [3, 4, 5]]
            assert written[1].tolist() == [[2, 2, 2]] * 2
            assert written[2].tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("to", ["cpu", "pjrt"])
def test_lists_of_other_lengths_are_pytorchs_error(to: str) -> None:
    with pytest.raises(RuntimeError, match="same number of tensors"):
        torch._foreach_copy_([torch.zeros(2, device=to)] * 2, [torch.ones(2, device="pjrt")])
