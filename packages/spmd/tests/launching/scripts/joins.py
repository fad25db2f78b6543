"""Joins whatever run it has been started in, by `pjrt://`, and says the sum of the ranks plus one."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("pjrt", init_method="pjrt://")
total = torch.full((2,), dist.get_rank() + 1.0, device="pjrt")
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.tolist()}\n", end="", flush=True)
dist.destroy_process_group()
if "AGAIN" in os.environ:  # a group that is made again finds nothing of the first one
    dist.init_process_group("pjrt", init_method="pjrt://")
    dist.all_reduce(total)
    print(f"again: {total.tolist()}\n", end="", flush=True)
