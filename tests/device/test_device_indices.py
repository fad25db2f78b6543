"""There is one device, `pjrt:0`: wherever an index is taken, another one raises."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch

from torch_pjrt.errors import DeviceError

OTHER = "pjrt:3"


def saved() -> io.BytesIO:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    return file


def here() -> torch.Tensor:
    return torch.ones(2, device="pjrt")


TAKE_AN_INDEX: dict[str, Callable[[], object]] = {
    "arange": lambda: torch.arange(3, device=OTHER),
    "device": lambda: torch.pjrt.device(3),  # type: ignore[attr-defined]
    "empty": lambda: torch.empty(2, device=OTHER),
    "empty_like": lambda: torch.empty_like(here(), device=OTHER),
    "empty_strided": lambda: torch.empty_strided((2,), (2,), device=OTHER),
    "eye": lambda: torch.eye(2, device=OTHER),
    "full_like": lambda: torch.full_like(here(), 1, device=OTHER),
    "linspace": lambda: torch.linspace(0, 1, 3, device=OTHER),
    "load": lambda: torch.load(saved(), map_location=OTHER),
    "module": lambda: torch.nn.Linear(2, 2, device=OTHER),
    "module.to": lambda: torch.nn.Linear(2, 2).to(OTHER),
    "new_zeros": lambda: here().new_zeros(2, device=OTHER),
    "ones": lambda: torch.ones(2, device=OTHER),
    "rand": lambda: torch.rand(2, device=OTHER),
    "randn_like": lambda: torch.randn_like(here(), device=OTHER),
    "randperm": lambda: torch.randperm(3, device=OTHER),
    "set_device": lambda: torch.pjrt.set_device(3),  # type: ignore[attr-defined]
    "sparse": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0]]), [1.0], (2,), device=OTHER, check_invariants=True
    ),
    "storage": lambda: torch.UntypedStorage(4, device=OTHER),
    "stream": lambda: torch.pjrt.Stream(OTHER),  # type: ignore[attr-defined]
    "synchronize": lambda: torch.pjrt.synchronize(OTHER),  # type: ignore[attr-defined]
    "tensor": lambda: torch.tensor([1.0], device=OTHER),
    "to from the CPU": lambda: torch.ones(2).to(OTHER),
    "to from the device": lambda: here().to(OTHER),
    "tril_indices": lambda: torch.tril_indices(3, 3, device=OTHER),
    "zeros_like": lambda: torch.zeros_like(here(), device=OTHER),
}


@pytest.mark.parametrize("name", TAKE_AN_INDEX)
def test_other_index_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="There is one device"):
        TAKE_AN_INDEX[name]()


def test_index_0_is_the_device() -> None:
    torch.pjrt.set_device("pjrt:0")  # type: ignore[attr-defined]

    assert torch.ones(2, device="pjrt:0").device == here().device == torch.device("pjrt", 0)
    assert torch.device(OTHER).index == 3


def test_process_of_a_run_may_choose_the_device_of_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")

    torch.pjrt.set_device(3)  # type: ignore[attr-defined]

    assert torch.pjrt.current_device() == 0  # type: ignore[attr-defined]
    for name, take in TAKE_AN_INDEX.items():
        take()
        assert torch.ones(2, device="pjrt:3").to(3).device == here().device, name
    with pytest.raises(DeviceError):
        torch.pjrt.set_device(2)  # type: ignore[attr-defined]
    with pytest.raises(DeviceError):
        torch.ones(2, device="pjrt:2")
