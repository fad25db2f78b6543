"""A run with a `CheckpointManager` that is interrupted has, bit for bit, the losses of one that was not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interruptions import StatefulRecords
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_pjrt import DeviceLoader
from torch_pjrt_fsdp import (
    CheckpointManager,
    DataShard,
    GlobalBatchSampler,
    GlobalStream,
    ResumableLoader,
    SeededSamples,
)

ONE = DataShard()


class Noisy(TensorDataset):
    """Rows with noise, as augmentation adds it."""

    def __getitem__(self, index: int) -> Any:
        [row] = super().__getitem__(index)
        return row + 0.1 * torch.randn(row.shape)


def of_rows() -> ResumableLoader:
    rows = Noisy(torch.arange(88.0).view(22, 4) / 88)
    sampler = GlobalBatchSampler(rows, 4, seed=9, last="short", seed_samples=True, shard=ONE)
    return ResumableLoader(DataLoader(SeededSamples(rows), batch_sampler=sampler))


def of_a_stream() -> ResumableLoader:
    stream = GlobalStream(
        StatefulRecords(0, 22),
        4,
        transform=lambda i: torch.full((4,), i / 22) + 0.1 * torch.randn(4),
        shuffle=5,
        last="short",
        seed_samples=True,
        shard=ONE,
    )
    return ResumableLoader(DataLoader(stream, batch_size=None))


def losses(
    loader: ResumableLoader,
    folder: Path,
    stop: int | None = None,
    begin: int | None = None,
    every: bool = False,
) -> Iterator[tuple[int, float]]:
    """Step and loss of a run of three epochs that begins where the last checkpoint is.

    stop   saves after this step, and ends. begin: with the checkpoint of this step. every: saves each step.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1)).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    data = DeviceLoader(loader, prefetch=3)
    state = {"model": model, "optimizer": optimizer, "data": data}
    with CheckpointManager(folder, preemption=None, keep=None) as manager:
        step = manager.restore_latest(state) if begin is None else begin
        if begin is not None:
            manager.restore(state, begin)
        elif every:
            manager.save(-1, state)  # before there is a batch
        for epoch in range(data.epoch, 3):
            data.set_epoch(epoch)
            for batch in data:
                step += 1
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                yield step, loss.item()
                if every or step == stop:
                    manager.save(step, state)
                if step == stop:
                    return


@pytest.mark.parametrize("data", [of_rows, of_a_stream])
def test_losses_after_an_interruption_are_the_same_bits(
    data: Callable[[], ResumableLoader], tmp_path: Path
) -> None:
    whole = list(losses(data(), tmp_path / "whole"))

    parts: list[tuple[int, float]] = []
    for stop in (2, 5, 10, None):  # within an epoch, at the end of one, within the next
        parts += losses(data(), tmp_path / "parts", stop)

    assert [step for step, _ in whole] == list(range(18))
    assert parts == whole


@pytest.mark.parametrize("data", [of_rows, of_a_stream])
def test_any_checkpoint_of_one_manager_goes_on(
    data: Callable[[], ResumableLoader], tmp_path: Path
) -> None:
    """What a loader's state is called changes within an epoch, at its end and at its beginning."""
    whole = list(losses(data(), tmp_path, every=True))

    for begin in (0, 4, 5, 6, 7, 11, 12):  # an epoch has six steps
        assert list(losses(data(), tmp_path, begin=begin)) == whole[begin + 1 :]
