"""A process of a run that trains alike, until one of them changes the last bit of a parameter, and goes on.

`diverging_run.py RANK`: which one. It prints when; each prints when it has been told, and ends by the error.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_pjrt_spmd.distributed import Diverged, DivergenceCheck

FAULTY, EVERY, STEP = int(sys.argv[1]), 10, 15

if __name__ == "__main__":
    dist.init_process_group("pjrt")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)).to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check = DivergenceCheck(model, every=EVERY)
    weight = dict(model.named_parameters())["1.weight"]
    try:
        for step in range(40):
            if step == STEP and int(os.environ["RANK"]) == FAULTY:
                with torch.no_grad():
                    weight[0, 1] = torch.nextafter(weight[0, 1].cpu(), torch.tensor(9.0))
                print(f"FAULT {time.time()}", flush=True)
            x = torch.full((4, 8), float(step % 3), device="pjrt")
            F.mse_loss(model(x), torch.zeros(4, 2, device="pjrt")).backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            optimizer.step()
            optimizer.zero_grad()
            check()
    except Diverged:
        print(f"TOLD {time.time()}", flush=True)
        raise
