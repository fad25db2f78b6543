"""Rank 1 fails in the first attempt, after all have computed together; the second attempt succeeds.

Which attempt it is says a file: TORCHELASTIC_RESTART_COUNT differs between hosts.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

mark = Path(os.environ["MARK"])
is_first = not mark.exists()
dist.init_process_group("pjrt")
rank = dist.get_rank()
total = torch.full((2,), rank + 1.0, device="pjrt")
for _ in range(3):  # more calls than the second attempt makes: what they leave would answer it
    dist.all_reduce(total)
print(f"attempt {1 if is_first else 2}, rank {rank}: {total.tolist()}\n", end="", flush=True)
if is_first:
    if rank == 1:
        mark.touch()
        raise ValueError("a fault of the first attempt")
    time.sleep(60)
total.fill_(rank + 1.0)
dist.all_reduce(total)
print(f"done, rank {rank}: {total.tolist()}\n", end="", flush=True)
