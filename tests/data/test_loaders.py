"""`DataLoader` feeds the device, with workers and with `pin_memory=True`."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_loader_feeds_the_device(n_workers: int, pin_memory: bool) -> None:
    torch.ones(1, device="pjrt")  # the device has been started before the workers are
    data = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
    loader = DataLoader(data, batch_size=4, num_workers=n_workers, pin_memory=pin_memory)

    seen = [
        (x.to("pjrt", non_blocking=True).sum() + y.to("pjrt", non_blocking=True).sum()).item()
        for x, y in loader
    ]

    assert seen == [28 + 6, 92 + 22, 70 + 17]


def test_persistent_workers_serve_several_epochs() -> None:
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True, pin_memory=True)

    sums = [[x.to("pjrt").sum().item() for (x,) in loader] for _ in range(2)]

    assert sums == [[6, 22], [6, 22]]


def test_uploaded_batch_does_not_follow_the_host_tensor() -> None:
    host = torch.ones(1000)

    on_device = host.to("pjrt", non_blocking=True)
    host.zero_()

    assert on_device.sum().item() == 1000


def test_downloaded_tensor_does_not_follow_the_device() -> None:
    x = torch.ones(4, device="pjrt")

    host = x.cpu()
    x.add_(1)
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    host.mul_(10)

    assert host.tolist() == [10, 10, 10, 10]
    assert x.tolist() == [2, 2, 2, 2]


def test_worker_that_uses_the_device_is_told_why_it_cannot(
    python: Callable[..., CompletedProcess[str]],
) -> None:
    done = python(
        """
import torch
from torch.utils.data import DataLoader, Dataset

class OnDevice(Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return torch.ones(2, device="pjrt") * i

torch.ones(1, device="pjrt")
try:
    list(DataLoader(OnDevice(), num_workers=1, timeout=600))
except RuntimeError as error:
    print("refused:", type(error).__name__, error)
""",
    )

    assert "refused:" in done.stdout
    assert "fork" in done.stdout
