"""Training that goes on from its last checkpoint when torchrun starts it again.

    torchrun --nproc-per-node 2 --max-restarts 1 elastic_run.py FOLDER STEP_OF_DEATH

Each rank writes a line for each batch: attempt, step, the samples. Rank 1 of the first attempt is killed in
the middle of step STEP_OF_DEATH, which is after a checkpoint, but not just after. When that was, and when a
rank had made a step again, is printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

N_SAMPLES, BATCH, EPOCHS, SAVED_EVERY = 24, 2, 2, 3
STEPS = EPOCHS * N_SAMPLES // (BATCH * 2)  # with two ranks


def run(folder: Path, step_of_death: int) -> subprocess.CompletedProcess[str]:
    """torchrun with two processes of this script, which it starts again once."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1"),
            *(__file__, str(folder), str(step_of_death)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )


def weights_without_a_restart() -> torch.Tensor:
    """On the CPU, in one process, of both ranks' batches together."""
    module, data = module_and_data()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        module(data[samples_of(step, 0, 2) + samples_of(step, 1, 2)]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def samples_of(step: int, rank: int, n_ranks: int) -> list[int]:
    """The samples of one rank's batch: of a shuffle that the epoch decides, the same on every attempt."""
    per_epoch = N_SAMPLES // (BATCH * n_ranks)
    epoch, position = divmod(step, per_epoch)
    order = torch.randperm(N_SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()
    begin = (position * n_ranks + rank) * BATCH
    return order[begin : begin + BATCH]


def module_and_data() -> tuple[torch.nn.Module, torch.Tensor]:
    """The model at its start, on the CPU, and all samples."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1), torch.randn(N_SAMPLES, 4)


def main(folder: Path, step_of_death: int) -> None:
    dist.init_process_group("pjrt")
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    module, data = module_and_data()
    model = DistributedDataParallel(module.to("pjrt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    checkpoint, begin = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    log = open(folder / f"batches.{rank}", "a")  # noqa: SIM115  open to the end of the process
    for step in range(begin, EPOCHS * N_SAMPLES // (BATCH * n_ranks)):
        samples = samples_of(step, rank, n_ranks)
        loss = model(data[samples].to("pjrt")).square().mean()
        if attempt == 0 and rank == 1 and step == step_of_death:
            print("FAULT", time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if attempt == 1 and step == begin:
            print("AGAIN", time.time(), flush=True)
        print(attempt, step, *samples, file=log, flush=True)
        if (step + 1) % SAVED_EVERY == 0:
            if rank == 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, "step": step + 1}, f"{checkpoint}.incomplete")
                os.replace(f"{checkpoint}.incomplete", checkpoint)
            dist.barrier()
    if rank == 0:
        weights = torch.cat([p.detach().cpu().flatten() for p in model.parameters()])
        torch.save(weights, folder / "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
