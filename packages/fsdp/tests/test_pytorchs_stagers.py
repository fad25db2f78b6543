"""PyTorch's staging of states for asynchronous checkpoints copies the device's storages as they are."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.checkpoint._state_dict_stager import StateDictStager

pytestmark = pytest.mark.filterwarnings("ignore:Ignoring pin_memory flag")


def _state() -> dict[str, torch.Tensor]:
    whole = torch.arange(16.0, device="pjrt").view(4, 4)
    return {
        "whole": whole,
        "flat": whole.view(16),
        "rows": whole[2:],
        "turned": whole.t(),
        "pending": whole * 2 + 1,
        "parameter": torch.nn.Parameter(torch.full((3,), 2.0, device="pjrt")),
        "number": torch.tensor(2**40, device="pjrt"),
        "nothing": torch.empty(0, 3, device="pjrt"),
        "by columns": torch.empty_strided((2, 3), (1, 2), device="pjrt").fill_(7.0),
        "bools": torch.tensor([True, False], device="pjrt"),
        "bfloat16": torch.ones(3, device="pjrt", dtype=torch.bfloat16) / 3,
        "complex": torch.full((2,), 1j, device="pjrt"),
        "on the CPU": torch.ones(2),
    }


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("not_blocking", [False, True])
def test_a_staged_state_has_the_same_values_views_and_strides(
    shared: bool, pinned: bool, not_blocking: bool
) -> None:
    state = _state()
    stager = StateDictStager(pin_memory=pinned, share_memory=shared)

    staged = stager.stage(state, non_blocking=not_blocking)

    for name, value in state.items():
        assert staged[name].device.type == "cpu"
        assert (staged[name].dtype, staged[name].stride()) == (value.dtype, value.stride())
        assert torch.equal(staged[name], value.detach().cpu()), name
    one = {
        staged[name].untyped_storage().data_ptr() for name in ("whole", "flat", "rows", "turned")
    }
    assert len(one) == 1


def test_a_state_that_is_staged_again_goes_to_the_same_memory() -> None:
    state, stager = _state(), StateDictStager()
    first = stager.stage(state)

    state["whole"].fill_(9.0)
    second = stager.stage(state)

    assert second["rows"].tolist() == [[9.0] * 4] * 2
    assert second["whole"].data_ptr() == first["whole"].data_ptr()
