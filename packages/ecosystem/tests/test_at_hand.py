"""`pjrt` is at hand where `torch.accelerator` says so, but for a CPU that nobody asked for beside a GPU."""

from __future__ import annotations

import pytest
import torch

from torch_pjrt_ecosystem import at_hand


@pytest.fixture
def situation(monkeypatch: pytest.MonkeyPatch):
    """Sets what is there: the device of `pjrt`, CUDA, PJRT_DEVICE, tensors on the device."""

    def set_up(device: str | None, cuda: bool, named: bool, started: bool) -> None:
        accelerator = None if device is None else torch.device("pjrt")
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: accelerator
        )
        monkeypatch.setattr("torch_pjrt.extend.chosen_device_name", lambda: device)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(
            torch.get_device_module("pjrt"), "is_initialized", lambda: started, raising=False
        )
        monkeypatch.setenv("PJRT_DEVICE", "CPU" if named else "")

    return set_up


@pytest.mark.parametrize(
    ("device", "cuda", "named", "started", "is_at_hand"),
    [
        (None, False, False, False, False),
        ("cpu", False, False, False, True),
        ("cpu", True, False, False, False),
        ("cpu", True, True, False, True),
        ("cpu", True, False, True, True),
        ("tpu", False, False, False, True),
        ("gpu", True, False, False, True),
    ],
)
def test_at_hand(situation, device, cuda, named, started, is_at_hand) -> None:
    situation(device, cuda, named, started)

    assert at_hand.is_at_hand() is is_at_hand


def test_it_agrees_with_torch_accelerator_here() -> None:
    here = torch.accelerator.current_accelerator(check_available=True)

    assert here is not None and at_hand.is_at_hand() == (here.type == "pjrt")
