"""A process that trains with Lightning's `Trainer` or with Fabric, and prints losses, weights and costs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["USE_TORCH_XLA"] = "0"
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import torch
from torch import nn

from small import Costs, model, rows
from torch_pjrt_ecosystem.autoload import autoload

autoload()

BATCH = 8 // int(os.environ.get("WORLD_SIZE", "1"))


def loader() -> Any:
    """Two processes together have the rows of one, step by step: Lightning's own sampler shuffles."""
    given: Any = rows()
    sampler = None
    if torch.distributed.is_initialized():
        sampler = torch.utils.data.DistributedSampler(given, shuffle=False)
    return torch.utils.data.DataLoader(given, BATCH, sampler=sampler)


def by_trainer(strategy: str, folder: str, by_layer: bool = False) -> dict[str, Any]:
    """Two epochs; then one more from the checkpoint of the first."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.distributed.fsdp import fully_shard

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.ModuleList(model())
            self.costs = Costs()
            self.losses: list[Any] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.net:
                x = layer(x)
            return x

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.costs.mark()
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.losses.append(loss.detach())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.log("validation", loss, sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    class OfLayers(Classifier):
        def configure_model(self) -> None:
            mesh: Any = self.device_mesh
            for layer in self.net:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh["data_parallel"])
            fully_shard(self, mesh=mesh["data_parallel"])

    def trained(epochs: int, resume: str | None = None) -> tuple[Any, Any]:
        module = OfLayers() if by_layer else Classifier()
        trainer = pl.Trainer(
            accelerator="pjrt",
            strategy=strategy,
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            default_root_dir=folder,
            callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
            enable_checkpointing=True,
        )
        trainer.fit(module, loader(), loader(), ckpt_path=resume)
        return module, trainer

    module, trainer = trained(2)
    resumed, _ = trained(2, os.path.join(folder, "epoch=0.ckpt"))
    return said(module.losses, module, module.costs, trainer.global_rank) | {
        "resumed": [means(loss) for loss in resumed.losses],
        "validation": trainer.callback_metrics["validation"].item(),
        "strategy": trainer.strategy.strategy_name,
        "device": str(trainer.strategy.root_device),
    }


def by_fabric(strategy: str) -> dict[str, Any]:
    """Two epochs."""
    from lightning.fabric import Fabric

    fabric: Any = Fabric(accelerator="pjrt", strategy=strategy)
    fabric.launch()
    net: Any = fabric.setup_module(model())
    optimizer: Any = fabric.setup_optimizers(torch.optim.AdamW(net.parameters(), 1e-2))
    losses, costs = [], Costs()
    for _ in range(2):
        for x, labels in fabric.setup_dataloaders(loader()):
            costs.mark()
            loss = nn.functional.cross_entropy(net(x), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return said(losses, net, costs, fabric.global_rank) | {
        "strategy": fabric.strategy.strategy_name,
        "device": str(fabric.device),
    }


def means(loss: torch.Tensor) -> float:
    """The mean of all processes."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(loss)
        loss = loss / torch.distributed.get_world_size()
    return loss.item()


def said(losses: list[Any], net: nn.Module, costs: Costs, rank: int) -> dict[str, Any]:
    parts: list[Any] = [p.detach() for p in net.parameters()]
    wholes = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parts]
    return {
        "rank": rank,
        "steps": costs.steps,
        "fallbacks": costs.fallbacks,
        "losses": [means(loss) for loss in losses],
        "weights": [w.double().cpu().sum().item() for w in wholes],
        "held": sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in parts),
    }


if __name__ == "__main__":
    way, strategy, folder = sys.argv[1:]
    if way == "fabric":
        print(json.dumps(by_fabric(strategy)))
    else:
        print(json.dumps(by_trainer(strategy, folder, by_layer=way == "layers")))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
