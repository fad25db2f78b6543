"""Sharded training as PyTorch has it, unmodified, on the device and by gloo on CPU tensors.

A process that prints, for each case, what came of it on both, and how many programs each step was. Arguments:
words of which a case's name has one; none: all cases. `--part K/N` before them: each N-th, from the K-th on.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from typing import Any

import flat_shard_cases
import fully_shard_cases
import state_dict_cases
import torch.distributed as dist
import training_loop

CASES: dict[str, training_loop.Case] = {
    **fully_shard_cases.CASES,
    **flat_shard_cases.CASES,
    **state_dict_cases.CASES,
}


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    words = sys.argv[1:]
    k, n = 0, 1
    if words[:1] == ["--part"]:
        k, n = (int(x) for x in words[1].split("/"))
        words = words[2:]
    for name, case in list(CASES.items())[k::n]:
        if words and not any(word in name for word in words):
            continue
        line: dict[str, Any] = {"case": name}
        begun = time.process_time()
        for device in ("cpu", "pjrt"):
            training_loop.programs.clear()
            try:
                line[device] = case(device)
            except Exception as error:
                traceback.print_exc()
                line[device] = f"{type(error).__name__}: {str(error)[:2000]}"
        print(
            json.dumps(
                {**line, "programs": training_loop.programs, "s": time.process_time() - begun}
            ),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
