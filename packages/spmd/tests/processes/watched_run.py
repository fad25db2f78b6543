"""Two processes that are watched: who is slow, who has diverged, what each waits for. Prints lines of JSON.

What the other process of the test is to do next, it says by a line on the standard input of rank 1.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_pjrt_spmd.distributed import Diverged, DivergenceCheck, check_divergence, stragglers
from torch_pjrt_spmd.distributed import group as groups

RANK = int(os.environ["RANK"])
SLOW_SECONDS = 0.1


def say(case: str, **what: Any) -> None:
    print(json.dumps({"case": case, **what}), flush=True)


def trained() -> torch.nn.Sequential:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)).to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check = DivergenceCheck(model, every=3)
    for step in range(8):
        if RANK == 1:
            time.sleep(SLOW_SECONDS)
        loss = F.mse_loss(
            model(torch.full((4, 8), float(step), device="pjrt")), torch.zeros(4, 2, device="pjrt")
        )
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        check()
    return model


def diverged(model: torch.nn.Sequential) -> None:
    for name, change in (("a_bit", True), ("nothing", False)):
        if RANK == 1 and change:
            with torch.no_grad():
                weight = dict(model.named_parameters())["1.weight"]
                weight[0, 1] = torch.nextafter(weight[0, 1].cpu(), torch.tensor(9.0))
        try:
            check_divergence(model if change else {"loss": torch.tensor(1.5, device="pjrt")})
        except Diverged as error:
            say(f"diverged: {name}", error=str(error), tensor=error.tensor, ranks=error.ranks)
        else:
            say(f"diverged: {name}", error="")


def other_dtypes() -> None:
    """A change of one element is found in each dtype, and a swap of two."""
    found = []
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
    ):
        for change in ("one", "swap", "none"):
            x = torch.tensor([0, 1, 1, 0]).to(dtype)
            if RANK == 1 and change == "one":
                x[3] = 1
            elif RANK == 1 and change == "swap":
                x = x[[1, 0, 2, 3]]
            try:
                check_divergence(x.to("pjrt"))
                found.append(change == "none")
            except Diverged:
                found.append(change != "none")
    say("dtypes", right=found)


def compile_for(seconds: float) -> None:
    """What looks like a long compilation: frames of JAX's compiler."""
    code = compile(f"import time; time.sleep({seconds})", "/somewhere/jax/_src/compiler.py", "exec")
    exec(code)


def main() -> None:
    dist.init_process_group("pjrt")
    x = torch.ones(2, device="pjrt")
    model = trained()
    time.sleep(1.3)  # a post later
    say("slow", ranks=[one.rank for one in stragglers()], text=[str(one) for one in stragglers()])
    diverged(model)
    other_dtypes()
    dist.new_group([0, 1])
    say("groups", n=len(groups._groups))
    dist.destroy_process_group()
    dist.init_process_group("pjrt")
    y = x * (RANK + 1)
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    say("again", value=y.tolist(), n=len(groups._groups))
    with open("/proc/self/status") as status:
        caught = next(line.split()[1] for line in status if line.startswith("SigCgt"))
        say("signals", terms=bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1))

    if RANK == 1:
        compile_for(6.5)
    dist.all_reduce(x)
    say("compiled", value=x.tolist())
    if RANK == 1:
        sys.stdin.readline()
    else:
        signal.signal(signal.SIGTERM, lambda *given: sys.exit(7))
    dist.all_reduce(x)  # the line at which rank 0 waits


if __name__ == "__main__":
    main()
