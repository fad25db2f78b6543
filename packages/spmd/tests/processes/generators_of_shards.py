"""A process of two that draws DTensors by a CPU generator; prints what is so of each operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

dist.init_process_group("pjrt")
MESH = init_device_mesh("pjrt", (2,))
torch.manual_seed(5)

Draw = Callable[[Any, torch.Generator], Any]
# The random operators that DTensor knows, and functions that are made of them.
DRAWS: dict[str, Draw] = {
    "uniform_": lambda x, g: x.uniform_(generator=g),
    "normal_": lambda x, g: x.normal_(generator=g),
    "bernoulli_": lambda x, g: x.bernoulli_(0.5, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x * 0.5, generator=g),
    "xavier_uniform_": lambda x, g: torch.nn.init.xavier_uniform_(x, generator=g),
    "kaiming_normal_": lambda x, g: torch.nn.init.kaiming_normal_(x, generator=g),
    "trunc_normal_": lambda x, g: torch.nn.init.trunc_normal_(x, generator=g),
}


def drawn(draw: Draw, placement: Placement, generator: torch.Generator) -> torch.Tensor:
    """What each rank has got, on the CPU: ranks first."""
    x = distribute_tensor(torch.ones(8, 16).to("pjrt"), MESH, [placement])
    own = draw(x, generator)
    assert isinstance(own, DTensor)
    here = own.to_local().contiguous()
    every = [torch.zeros_like(here) for _ in range(2)]
    dist.all_gather(every, here)
    return torch.stack(every).cpu()


def of(draw: Draw) -> dict[str, bool]:
    generator = torch.Generator().manual_seed(3)
    begun, state = generator.get_state(), torch.pjrt.get_rng_state()  # type: ignore[attr-defined]
    shards, later = drawn(draw, Shard(0), generator), drawn(draw, Shard(0), generator)
    whole = drawn(draw, Replicate(), generator)
    again = drawn(draw, Shard(0), torch.Generator().manual_seed(3))
    other = drawn(draw, Shard(0), torch.Generator().manual_seed(4))
    return {
        "replicas are alike": torch.equal(whole[0], whole[1]),
        "shards differ": not torch.equal(shards[0], shards[1]),
        "the same seed gives the same": torch.equal(shards, again),
        "another seed gives others": not torch.equal(shards, other),
        "it goes on": not torch.equal(shards, later)
        and not torch.equal(begun, generator.get_state()),
        "the device's own goes on as without": torch.equal(
            state,
            torch.pjrt.get_rng_state(),  # type: ignore[attr-defined]
        ),
    }


if __name__ == "__main__":
    for name, draw in DRAWS.items():
        print(json.dumps({"case": name, **of(draw)}), flush=True)
    dist.destroy_process_group()
