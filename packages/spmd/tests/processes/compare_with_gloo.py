"""A process that compares the collectives of the device with gloo's, and prints what it found."""

from __future__ import annotations

import json
import os
import sys

import torch.distributed as dist
from collective_cases import movements, reductions, reductions_by_formula
from comparison import Cases, World
from single_cases import one_by_one, subgroups

from torch_pjrt.extend import client


def main() -> None:
    whole = "--few" not in sys.argv
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    cases = Cases()
    world = World()
    one_by_one(cases, world)
    subgroups(cases)
    if whole:
        reductions_by_formula(cases, world)
        movements(cases, world)
        reductions(cases, world)
    print(
        json.dumps(
            {
                "gloo": cases.against_gloo,
                "formula": cases.against_formula,
                "refused": cases.refused,
                "failed": cases.failed,
                "chips": len(client().chip.client.local_devices()),
            }
        )
    )
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TORCH_PJRT_PEER_TIMEOUT", "20")
    main()
