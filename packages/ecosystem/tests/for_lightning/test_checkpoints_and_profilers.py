"""Lightning's asynchronous checkpoints hold what the weights were when they were asked for; its profilers,
and the device's own around a training, change neither losses nor programs.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import nn

import torch_pjrt
from hangs import HANGS_S
from small import Costs, model, rows

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning",  # Lightning's advice
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
)


class Classifier(pl.LightningModule):
    """Remembers its weights behind each step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()
        self.costs = Costs()
        self.losses: list[torch.Tensor] = []
        self.seen: list[list[torch.Tensor]] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.costs.mark()
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


class Remembering(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append([p.detach().cpu() for p in self.parameters()])


class Late(TorchCheckpointIO):
    """Writes nothing before it is let."""

    def __init__(self) -> None:
        self.may_write = threading.Event()

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        assert self.may_write.wait(HANGS_S)
        super().save_checkpoint(*args, **kwargs)


class AtTheEnd(pl.Callback):
    """Lets it, behind the last step."""

    def __init__(self, late: Late) -> None:
        self.late = late

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.late.may_write.set()


def train(net: Classifier, folder: Path, **arguments: Any) -> None:
    settings: dict[str, Any] = {
        "accelerator": "pjrt",
        "max_epochs": 1,
        "logger": False,
        "default_root_dir": folder,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
    }
    loader: Any = torch.utils.data.DataLoader(rows(), 4)  # type: ignore[arg-type]
    pl.Trainer(**settings | arguments).fit(net, loader)


def test_checkpoints_that_are_written_late_have_the_weights_of_their_steps(tmp_path: Path) -> None:
    late = Late()
    each_step = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    net = Remembering()

    train(
        net,
        tmp_path,
        plugins=[AsyncCheckpointIO(late)],
        callbacks=[each_step, AtTheEnd(late)],
        enable_checkpointing=True,
    )

    assert len(net.seen) == 8
    for step, weights in enumerate(net.seen, 1):
        written = torch.load(tmp_path / f"step={step}.ckpt", weights_only=False)
        for mine, wanted in zip(written["state_dict"].values(), weights, strict=True):
            assert torch.equal(mine.cpu(), wanted), step
    assert not torch.equal(net.seen[0][0], net.seen[1][0])


@pytest.mark.slow("rows")
@pytest.mark.parametrize("profiler", ["simple", "advanced"])
def test_lightning_s_profilers_change_neither_losses_nor_programs(
    profiler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, profiled = Classifier(), Classifier()
    train(plain, tmp_path)

    train(profiled, tmp_path, profiler=profiler)

    assert [x.item() for x in profiled.losses] == [x.item() for x in plain.losses]
    assert set(profiled.costs.steps[3:]) == {(0, 1, 0)}


def test_the_device_is_profiled_around_a_training(tmp_path: Path) -> None:
    net = Classifier()

    with torch_pjrt.profile(tmp_path / "traces"):
        train(net, tmp_path)

    assert [*(tmp_path / "traces").rglob("*.trace.json.gz")]
    assert set(net.costs.steps[3:]) == {(0, 1, 0)}
