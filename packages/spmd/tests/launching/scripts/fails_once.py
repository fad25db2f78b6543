"""Rank 1 fails in the first attempt, after all have computed together; the second attempt succeeds."""

import os
import time

import torch
import torch.distributed as dist

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("pjrt")
rank = dist.get_rank()
total = torch.full((2,), rank + 1.0, device="pjrt")
for _ in range(3):  # more calls than the second attempt makes: what they leave would answer it
    dist.all_reduce(total)
print(f"attempt {attempt}, rank {rank}: {total.tolist()}\n", end="", flush=True)
if attempt == "0":
    if rank == 1:
        raise ValueError("a fault of the first attempt")
    time.sleep(60)
total.fill_(rank + 1.0)
dist.all_reduce(total)
print(f"done, rank {rank}: {total.tolist()}\n", end="", flush=True)
