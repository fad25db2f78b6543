"""A process of a run that trains with collectives among what it records; prints what it saw.

Losses of DDP with AdamW, and of a captured step of it; which programs that took; what happens where ranks
read at other places, or wait for each other by other ways.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt_spmd.distributed.group import group_of_ranks

STEPS = 8

dist.init_process_group("cpu:gloo,pjrt:pjrt")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
JOINT = group_of_ranks().joint


def device_of(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator).to("pjrt")


def training(capture: bool, reads: bool) -> dict[str, Any]:
    """Losses, and how many programs each step was; `reads`: rank 0 reads a mean over ranks after each."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    ).to("pjrt")
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0001)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (ddp(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = torch_pjrt.capture(step) if capture else step
    torch.manual_seed(RANK)
    losses, programs = [], []
    for n in range(STEPS):
        batch = device_of(10 * n + RANK, 4, 8), device_of(10 * n + RANK + 5, 4, 1)
        before = counters.programs_run
        losses.append(loss := run(*batch))
        programs.append(counters.programs_run - before)
        if reads:
            mean = (loss * 2 + loss) / (3 * SIZE)
            mean = mean * 2 - mean  # behind some operators
            dist.all_reduce(mean)
            if RANK == 0:
                mean.item()
    weights = [p.detach().sum().item() for p in model.parameters()]
    return {
        "losses": [x.item() for x in losses],
        "programs": programs,
        "weights": weights,
        "replays": counters.replays,
    }


def waits_otherwise() -> Any:
    """Rank 0 waits for rank 1 by the host; rank 1 for a collective that rank 0 has recorded and not run."""
    x = device_of(0, 3)
    for _ in range(6):
        x = x * 1
    y = x - x + 1
    dist.all_reduce(y)
    begun = time.monotonic()
    said = torch.zeros(1)
    if RANK == 0:
        dist.recv(said, 1)
    else:
        said += y[0].item()
        dist.send(said, 0)
    return [said.item(), y.tolist(), time.monotonic() - begun]


def main() -> None:
    found: dict[str, Any] = {}
    for name, capture, reads in (
        ("plain", False, False),
        ("captured", True, False),
        ("read by one", False, True),
    ):
        before = JOINT.together, JOINT.apart
        found[name] = training(capture, reads)
        found[name]["joint"] = [JOINT.together - before[0], JOINT.apart - before[1]]
    found["waits otherwise"] = waits_otherwise()
    found["compiled"] = counters.programs_compiled
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
