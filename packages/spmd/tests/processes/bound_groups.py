"""A process whose default group has a `device_id`: makes groups and meshes in all ways, and sums in each."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

HERE = int(os.environ["LOCAL_RANK"])
WAYS: dict[str, dict[str, Any]] = {
    "number": {"backend": "pjrt", "device_id": HERE},
    "device": {"device_id": torch.device("pjrt", HERE)},  # PyTorch finds the backend
    "with gloo": {"backend": "cpu:gloo,pjrt:pjrt", "device_id": torch.device("pjrt:0")},
    "none": {"backend": "pjrt"},
}


def total(group: Any) -> float | None:
    """Of the numbers of the group's ranks, from 1 on."""
    if group is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    x = torch.full((2,), dist.get_rank() + 1.0, device="pjrt")
    dist.all_reduce(x, group=group)
    return x[0].item()


def groups() -> dict[str, Any]:
    n = dist.get_world_size()
    pairs = [[i, i + 1] for i in range(0, n, 2)]
    own = pairs[dist.get_rank() // 2]
    split: Any = dist.split_group
    parts = split(split_ranks=pairs, group_desc="pairs")
    said = {
        "split": total(parts),
        "split, described": parts.group_desc,
        "all, bound": total(dist.new_group(list(range(n)), device_id=torch.device("pjrt", HERE))),
        "described": dist.new_group(own, use_local_synchronization=True, group_desc="x").group_desc,  # pyright: ignore
        "by its own ranks": total(dist.new_group(own, use_local_synchronization=True)),
        "subgroups": total(dist.new_subgroups(2)[0]),
        "enumerated": total(dist.new_subgroups_by_enumeration(pairs)[0]),
        "mesh": total(init_device_mesh("pjrt", (n,)).get_group()),
    }
    mesh = init_device_mesh("pjrt", (n // 2, 2), mesh_dim_names=("rows", "columns"))
    said["rows"], said["columns"] = total(mesh.get_group("rows")), total(mesh.get_group("columns"))
    said["flat"] = total(mesh._flatten("all").get_group())
    backwards: Any = dist.new_group(list(reversed(range(n))), sort_ranks=False)  # pyright: ignore
    alone = [[k] for k in range(1, n - 1)]
    said["split of another order"] = total(split(backwards, [[0, n - 1], *alone]))
    # From here on ranks have made different numbers of groups.
    said["split, a rank"] = total(split(split_ranks=[[n - 1]]))
    said["split of a part"] = total(split(parts, [[1]]))  # the second of each pair, alone
    said["split again"] = total(split(split_ranks=pairs))
    return said


def refused() -> dict[str, str]:
    split: Any = dist.split_group
    calls: dict[str, dict[str, Any]] = {
        "none": {"split_ranks": []},
        "an empty one": {"split_ranks": [[]]},
        "twice": {"split_ranks": [[0, 0]]},
        "no such rank": {"split_ranks": [[dist.get_world_size()]]},
        "another backend": {"split_ranks": [[0]], "backend": "pjrt:gloo"},
    }
    said = {}
    for name, how in calls.items():
        try:
            said[name] = str(split(**how))
        except ValueError as error:
            said[name] = f"ValueError: {error}"
    return said


if __name__ == "__main__":
    dist.init_process_group(**WAYS[sys.argv[1]])
    about = [str(dist.get_default_backend_for_device(d)) for d in ("pjrt", torch.device("pjrt:0"))]
    print(json.dumps({"groups": groups(), "refused": refused(), "about": about}))
    sys.stdout.flush()
    dist.destroy_process_group()
