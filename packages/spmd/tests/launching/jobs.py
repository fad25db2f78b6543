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
