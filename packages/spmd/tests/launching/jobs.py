"""What the processes of tests do: functions of a module that can be imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch


def summed(values: torch.Tensor) -> dict[str, Any]:
    """The sum over the ranks of `values * (rank + 1)`, and who one is."""
    import torch.distributed as dist

    dist.init_process_group("pjrt")
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()}")
    total = values.to("pjrt") * (rank + 1)
    dist.all_reduce(total)
    said = {name: os.environ[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "HOME")}
    return {"rank": rank, "total": total, **said}


def failing(folder: str) -> None:
    """Rank 1 raises while rank 0 waits for it; each has a child, whose number is written down."""
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, f"{rank}").write_text(f"{os.getpid()} {child.pid}")
    dist.init_process_group("gloo")
    if rank == 1:
        raise KeyError("no such layer")
    dist.barrier()
    time.sleep(600)


def killed() -> None:
    """Rank 1 is killed, as by a host without memory."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def waiting(folder: str) -> None:
    """Each says that it is there, does not heed SIGTERM, and stays."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(folder, f"{os.environ['RANK']}").write_text(f"{os.getpid()}")
    time.sleep(600)


def exits(code: int) -> int:
    """Ends by `sys.exit`."""
    sys.exit(code)


def a_lambda() -> Any:
    """A result that plain pickle and cloudpickle refuse."""
    return (n for n in range(3))


def fails_at_step(folder: str, n_steps: int, notes: str) -> tuple[int, list[float]]:
    """Trains, with a checkpoint every other step; rank 1 fails after step 2 of the first attempt.

    Returns the step at which the last attempt began, and the parameter after each of its steps.
    """
    import torch.distributed as dist

    from torch_pjrt_spmd.launching.checkpoints import last_checkpoint, new_checkpoint

    dist.init_process_group("pjrt")
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    Path(notes, f"{attempt}-{rank}").write_text(f"{os.getpid()}")
    weight, begin, seen = torch.zeros((), device="pjrt"), 0, []
    if (begun := last_checkpoint(folder)) is not None:
        weight = torch.load(begun.folder / f"weight-{rank}.pt").to("pjrt")
        begin = begun.step + 1
    for step in range(begin, n_steps):
        gradient = torch.full((), step + rank + 1.0, device="pjrt")
        dist.all_reduce(gradient)
        weight += gradient
        seen.append(weight.item())
        if step % 2 == 1:
            with new_checkpoint(folder, step) as path:
                torch.save(weight.cpu(), path / f"weight-{rank}.pt")
        if attempt == "0" and step == 2 and rank == 1:
            raise ValueError("a fault after step 2")
    return begin, seen


def train_by_ray(config: dict[str, Any]) -> None:
    """A training loop as Ray Train calls it: DDP, a checkpoint each step, one fault in the first attempt."""
    import tempfile

    import ray.train  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, begin = dist.get_rank(), 0
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to("pjrt")
    given = ray.train.get_checkpoint()
    if given is not None:
        with given.as_directory() as folder:
            saved = torch.load(Path(folder, "model.pt"))
        model.load_state_dict(saved["model"])
        begin = saved["step"] + 1
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(begin, 4):
        torch.manual_seed(10 * step + rank)
        inputs = torch.randn(8, 4).to("pjrt")
        loss = (ddp(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if step == 2 and given is None and rank == 1:
            raise ValueError("a fault in step 2")
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": state, "step": step}, Path(folder, "model.pt"))
            kept = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
            told = {"loss": total.item(), "step": step, "begin": begin}
            ray.train.report(
                {**told, "device": os.environ["ACCELERATE_TORCH_DEVICE"]}, checkpoint=kept
            )


def failing_alone(folder: str) -> None:
    """Rank 1 raises while rank 0 waits for it in a collective of the device; when, is in `FOLDER.raised`."""
    import torch.distributed as dist

    Path(folder, os.environ["RANK"]).write_text(f"{os.getpid()}")
    dist.init_process_group("pjrt")
    if dist.get_rank() == 1:
        Path(f"{folder}.raised").write_text(f"{time.time()}")
        raise KeyError("no such layer")
    dist.all_reduce(torch.ones(2, device="pjrt"))
    torch.ones(2, device="pjrt").cpu()
    time.sleep(600)
