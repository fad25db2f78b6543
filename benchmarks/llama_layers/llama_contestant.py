"""One contestant in one round, in a process of its own: prints a line of JSON.

llama_contestant.py WAY FOLDER STEPS SIZES    seconds of each step after warming up, losses
llama_contestant.py device                    the device at work: its kind, its memory in bytes
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from llama import Sizes, batches_of
from llama_ways import WAYS

WARM = 5  # a captured step observes three


def device() -> dict[str, Any]:
    import torch

    import torch_pjrt  # noqa: F401

    _, total = torch.pjrt.mem_get_info()  # type: ignore[attr-defined]
    name = torch.pjrt.get_device_name()  # type: ignore[attr-defined]
    return {"kind": name, "memory_bytes": total}


def measured(way: str, folder: Path, steps: int, sizes: Sizes) -> dict[str, Any]:
    start = time.perf_counter()
    turn = itertools.cycle(batches_of(sizes))
    train = WAYS[way].make(sizes, folder)
    losses, seconds = [float(train(*next(turn)))], []
    first_s = time.perf_counter() - start
    for _ in range(WARM - 1):
        losses.append(float(train(*next(turn))))
    for _ in range(steps):
        before = time.perf_counter()
        losses.append(float(train(*next(turn))))
        seconds.append(time.perf_counter() - before)
    return {"seconds": seconds, "losses": losses, "first_s": first_s}


if __name__ == "__main__":
    if sys.argv[1] == "device":
        answer = device()
    else:
        way, folder, steps, sizes = sys.argv[1:]
        answer = measured(way, Path(folder), int(steps), Sizes(**json.loads(sizes)))
    print(json.dumps(answer), flush=True)
