"""The names that PyTorch and older scripts import from `torch_xla.distributed.spmd.api`."""

from torch_xla.distributed.spmd.dtensor import (
    convert_to_xla_mesh,
    convert_to_xla_partition_spec,
    xla_distribute_module,
    xla_distribute_tensor,
)

__all__ = [
    "convert_to_xla_mesh",
    "convert_to_xla_partition_spec",
    "xla_distribute_module",
    "xla_distribute_tensor",
]
