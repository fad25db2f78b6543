"""Lightning by the strategy `pjrt_spmd`, `Trainer` or Fabric, on all chips of the process; prints losses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["USE_TORCH_XLA"] = "0"
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from torch import nn

from small import Costs, model, rows
from torch_pjrt_ecosystem.autoload import autoload

autoload()


def loader() -> Any:
    return torch.utils.data.DataLoader(rows(36), 8)  # type: ignore[arg-type]


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = model()
        self.costs = Costs()
        self.losses: list[Any] = []
        self.chips: set[int] = set()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.costs.mark()
        self.chips.add(chips_of(batch[0]))
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def chips_of(x: torch.Tensor) -> int:
    """Into how many parts its rows are cut."""
    from torch_pjrt_spmd import local_shards

    return len(x) // len(local_shards(x)[0].data)


def by_trainer() -> dict[str, Any]:
    module = Classifier()
    trainer = pl.Trainer(
        strategy="pjrt_spmd",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, loader())
    return {
        "losses": [loss.item() for loss in module.losses],
        "chips": sorted(module.chips),
        "steps": module.costs.steps,
        "device": str(trainer.strategy.root_device),
    }


def by_fabric() -> dict[str, Any]:
    fabric: Any = Fabric(accelerator="pjrt", strategy="pjrt_spmd")
    fabric.launch()
    net: Any = fabric.setup_module(model())
    optimizer: Any = fabric.setup_optimizers(torch.optim.AdamW(net.parameters(), 1e-2))
    losses, chips, costs = [], set(), Costs()
    for _ in range(2):
        for x, labels in fabric.setup_dataloaders(loader()):
            costs.mark()
            chips.add(chips_of(x))
            loss = nn.functional.cross_entropy(net(x), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return {
        "losses": [loss.item() for loss in losses],
        "chips": sorted(chips),
        "steps": costs.steps,
        "device": str(fabric.device),
    }


if __name__ == "__main__":
    print(json.dumps(by_trainer() if sys.argv[1] == "trainer" else by_fabric()))
