"""`torch_xla.distributed.spmd` (`xs`): meshes, and tensors that are spread over them, by
`torch_pjrt_spmd`."""

from __future__ import annotations

from typing import Any

from torch import nn

from torch_xla.absent import absent
from torch_xla.distributed.spmd.dtensor import (
    convert_to_xla_mesh,
    convert_to_xla_partition_spec,
    xla_distribute_module,
    xla_distribute_tensor,
)
from torch_xla.distributed.spmd.marking import (
    MarkShardingFunction,
    ShardingSpec,
    ShardingType,
    XLAShardedTensor,
    annotate_custom_sharding,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    shard_as,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
)
from torch_xla.distributed.spmd.mesh import (
    HybridMesh,
    Mesh,
    PartitionSpec,
    get_1d_mesh,
    get_global_mesh,
    set_global_mesh,
)
from torch_xla.distributed.spmd.shards import XLAShard, give_attributes, local_shards

give_attributes()

__all__ = [
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "ShardingType",
    "XLAShard",
    "XLAShardedTensor",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "convert_to_xla_mesh",
    "convert_to_xla_partition_spec",
    "get_1d_mesh",
    "get_global_mesh",
    "local_shards",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
]

_BY_HAND = "`torch_pjrt_spmd.shard_map` runs a function on each chip's own parts"
__getattr__ = absent(
    __name__,
    {
        "enable_manual_sharding": _BY_HAND,
        "disable_manual_sharding": _BY_HAND,
        "auto_policy": "`torch_pjrt_spmd.auto_shard(model, example_inputs, mesh)` finds and applies a plan",
        "XLAPatchedLinear": "`torch.nn.Linear`: its products are partitioned by all their dims",
        "EinsumLinear": "`torch.nn.Linear`: its products are partitioned by all their dims",
    },
)


def apply_xla_patch_to_nn_linear(module: nn.Module, *forward: Any) -> nn.Module:
    """`module`: products of `torch.nn.Linear` keep all their dims here, as torch_xla's patch has it."""
    return module


def xla_patched_nn_linear_forward(m: nn.Linear, input: Any) -> Any:
    """`m(input)`."""
    return nn.functional.linear(input, m.weight, m.bias)


def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Nothing: backward of a rolled layer is one loop, whose steps XLA does not fuse with each other."""
