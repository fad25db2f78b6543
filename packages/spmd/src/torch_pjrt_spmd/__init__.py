"""Many chips, one program: tensors that are spread over a mesh, and XLA's partitioner.

A program is written as for one big device. What is marked says how tensors lie; XLA splits the work and
puts collectives where they are needed.

    Mesh                the chips, in rows and columns, each direction with a name
    use_mesh            what nobody marks lies on this mesh, a copy on each chip; current_mesh()
    mark_sharding       spread a tensor over a mesh; clear_sharding, shard_as
    distribute_tensor   a CPU tensor, each part of it on its chip; DeviceLoader: batches of them
    sharding_of         how a tensor lies; a TensorSharding
    local_shards        what each chip has of it; LocalShards
    visualize_sharding  the same as a picture in the terminal
    collectives         what chips exchange in each program; Collectives
    ShardingError       a tensor cannot lie on the mesh as the spec says
"""

from __future__ import annotations

from torch_pjrt_spmd.exchanges import Collective, collectives
from torch_pjrt_spmd.loader import DeviceLoader
from torch_pjrt_spmd.marking import clear_sharding, distribute_tensor, mark_sharding, shard_as
from torch_pjrt_spmd.mesh import Mesh, current_mesh, use_mesh
from torch_pjrt_spmd.sharding import (
    LocalShard,
    TensorSharding,
    local_shards,
    sharding_of,
    visualize_sharding,
)
from torch_pjrt_spmd.spec import ShardingError

__version__ = "0.1.0"
__all__ = [
    "Collective",
    "DeviceLoader",
    "LocalShard",
    "Mesh",
    "ShardingError",
    "TensorSharding",
    "clear_sharding",
    "collectives",
    "current_mesh",
    "distribute_tensor",
    "local_shards",
    "mark_sharding",
    "shard_as",
    "sharding_of",
    "use_mesh",
    "visualize_sharding",
]
