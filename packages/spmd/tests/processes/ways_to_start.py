"""A process that starts by the way it is told, and prints a sum over all ranks."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

way = sys.argv[1]
rank = int(os.environ.get("RANK", os.environ.get("JAX_PROCESS_ID", "0")))
if way == "device":
    torch.pjrt.set_device(int(os.environ["LOCAL_RANK"]))  # pyright: ignore[reportAttributeAccessIssue]
    dist.init_process_group("pjrt", device_id=torch.device("pjrt:0"))
elif way == "mesh":
    init_device_mesh("pjrt", (int(os.environ["WORLD_SIZE"]),))
elif way == "url":
    dist.init_process_group("pjrt", init_method="pjrt://")
else:
    dist.init_process_group(way)
x = torch.full((2,), rank + 1.0, device="pjrt")
dist.all_reduce(x)
if way == "device":  # as scripts for other accelerators do
    here = int(os.environ["LOCAL_RANK"])
    module = torch.nn.Linear(2, 1).to(here)
    model = DistributedDataParallel(module, device_ids=[here], output_device=here)
    model(torch.ones(1, 2)).sum().backward()  # DDP moves what it is given
    assert module.weight.device == torch.ones(1, device=f"pjrt:{here}").device
else:
    model = DistributedDataParallel(torch.nn.Linear(2, 1).to("pjrt"))
model(x[None]).sum().backward()
print(x.cpu().tolist(), dist.get_rank(), dist.get_world_size())
dist.destroy_process_group()
