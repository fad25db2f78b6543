from __future__ import annotations

import gc

import pytest
import torch

from torch_pjrt.every_object import every
from torch_pjrt.extend import Buffer


@pytest.mark.parametrize("kind", [Buffer, torch.Tensor, torch.nn.Parameter])
def test_it_finds_what_a_list_of_all_objects_has(kind: type[object]) -> None:
    kept = torch.nn.Linear(3, 4).to("pjrt"), [torch.ones(2, device="pjrt") for _ in range(9)]

    found = every(kind)
    listed = [x for x in gc.get_objects() if issubclass(type(x), kind)]

    assert {id(x) for x in found} == {id(x) for x in listed}
    assert len(found) >= len(kept[0].weight.shape)
