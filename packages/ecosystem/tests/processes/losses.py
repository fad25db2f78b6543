"""A process that trains with `Accelerator()` and prints losses, means of all, and what steps cost."""

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


def sharding(how: str = "") -> Any:
    """FSDP as Accelerate configures it ("fsdp1", "fsdp2"), with each layer sharded on its own; or None."""
    from accelerate import FullyShardedDataParallelPlugin

    if not how:
        return None
    return FullyShardedDataParallelPlugin(
        fsdp_version=int(how[-1]), auto_wrap_policy="size_based_wrap", min_num_params=10
    )


def main() -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    accelerator: Any = Accelerator(
        gradient_accumulation_steps=int(sys.argv[1]),
        mixed_precision=sys.argv[2],
        fsdp_plugin=sharding(*sys.argv[3:]),
        dataloader_config=DataLoaderConfiguration(split_batches=True),
    )
    set_seed(0)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    loader = torch.utils.data.DataLoader(rows(), 8)  # type: ignore[arg-type]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
    losses, costs = [], Costs()
    seen = torch.zeros((), device=accelerator.device)
    for _ in range(3):
        for x, labels in loader:
            with accelerator.accumulate(net):
                seen += x.sum()
                loss = nn.functional.cross_entropy(net(x), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    costs.mark()
            losses.append(loss.detach())
    means = [accelerator.reduce(loss, "mean").item() for loss in losses]
    right = []
    net.eval()
    for x, labels in loader:
        with torch.no_grad():
            hits = net(x).argmax(-1) == labels
        right += accelerator.gather_for_metrics(hits).tolist()
    parts: list[Any] = [p.detach() for p in net.parameters()]
    wholes = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parts]
    said = {
        "rank": accelerator.process_index,
        "of": accelerator.num_processes,
        "device": str(accelerator.device),
        "sum of x": seen.item(),
        "kind": type(net).__name__,
        "losses": means,
        "steps": costs.steps,
        "fallbacks": costs.fallbacks,
        "right": sum(right),
        "evaluated": len(right),
        "weights": [w.double().cpu().sum().item() for w in wholes],
        "held": sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in parts),
    }
    accelerator.end_training()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
