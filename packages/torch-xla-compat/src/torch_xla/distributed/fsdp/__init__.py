"""`torch_xla.distributed.fsdp`: one process for each device, by PyTorch's own FSDP."""

from torch_xla.absent import modules_of
from torch_xla.distributed.fsdp.consolidation import (
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
)
from torch_xla.distributed.fsdp.fully_sharded import XlaFullyShardedDataParallel
from torch_xla.distributed.fsdp.utils import checkpoint_module

__all__ = [
    "XlaFullyShardedDataParallel",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
]

__getattr__ = modules_of(__name__)
