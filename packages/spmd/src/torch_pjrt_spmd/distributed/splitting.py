"""`torch.distributed.split_group` of groups on the device, which `init_device_mesh` calls where a `device_id`
was given to `init_process_group`.

PyTorch asks the backend in C++ to split its communicator. There is none here: the parts are made as any
other group, by their own ranks alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from torch_pjrt_spmd.distributed.group import is_on_device

# How many parts of a group have been made: NCCL's descriptions of them have it.
_made: Counter[str] = Counter()


def install() -> None:
    """Stand before PyTorch's, for groups on the device."""
    split = distributed_c10d.split_group

    @wraps(split)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        parent: Any = parent_pg or distributed_c10d._get_default_group()
        if not is_on_device(parent):
            return split(parent_pg, split_ranks, *args, **kwargs)
        return _split(parent, split_ranks, *args, **kwargs)

    for module in (distributed_c10d, dist, device_mesh):
        module.split_group = split_group  # pyright: ignore[reportAttributeAccessIssue]


def _split(
    parent: Any,
    split_ranks: Sequence[Sequence[int]] | None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Any:
    """The part with this rank, by ranks of the parent; None, if there is none."""
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    world: Any = distributed_c10d._world
    numbers = world.pg_group_ranks[parent]
    own = dist.get_rank()
    if own not in numbers:
        raise ValueError(f"Global rank {own} is not part of the parent group {parent}")
    of_all = {number: rank for rank, number in numbers.items()}
    for part in split_ranks:
        _check(part, of_all)
    name = _backend(world.pg_map[parent][0], backend)
    n = _made[parent.group_name]
    _made[parent.group_name] += 1
    part = next((sorted(part) for part in split_ranks if numbers[own] in part), None)
    if part is None:
        return None
    ranks = [of_all[number] for number in part]
    default = distributed_c10d._get_default_group()
    # The same on all ranks of the part, whatever other groups each has made.
    called: Any = f"{parent.group_name}/{n}/{part[0]}"
    made, _ = distributed_c10d._new_process_group_helper(
        len(ranks),
        ranks.index(own),
        ranks,
        name,
        world.pg_map[default][1],
        called,
        backend_options=pg_options,
        timeout=timeout or distributed_c10d._get_default_timeout(name),
        device_id=default.bound_device_id,
        group_desc=group_desc or f"{parent.group_desc}:split:{n}",
    )
    world.pg_group_ranks[made] = {rank: number for number, rank in enumerate(ranks)}
    return made


def _check(part: Sequence[int], of_all: dict[int, int]) -> None:
    if not part:
        raise ValueError("the split group cannot be empty")
    if len(part) != len(set(part)):
        raise ValueError(f"the split group cannot have duplicate ranks, got {list(part)}")
    if unknown := [number for number in part if number not in of_all]:
        raise ValueError(
            f"the ranks of a split group are those of its parent, 0 to {len(of_all) - 1}; got {unknown}"
        )


def _backend(of_parent: str, wanted: str | None) -> Any:
    """What the part has of the backends that its parent has; all, unless said."""
    if wanted is None:
        return dist.Backend(of_parent)
    config: Any = distributed_c10d.BackendConfig
    there, asked = (
        config(dist.Backend(name)).get_device_backend_map() for name in (of_parent, wanted)
    )
    if other := {device: name for device, name in asked.items() if there.get(device) != name}:
        raise ValueError(f"The parent group has the backends {there}; requested {other}")
    return dist.Backend(wanted)
