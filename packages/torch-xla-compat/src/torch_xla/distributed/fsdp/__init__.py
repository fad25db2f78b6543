"""`torch_xla.distributed.fsdp`: one process for each device, by PyTorch's own FSDP."""

from torch_xla.absent import absent
from torch_xla.distributed.fsdp.fully_sharded import XlaFullyShardedDataParallel
from torch_xla.distributed.fsdp.utils import checkpoint_module

__all__ = ["XlaFullyShardedDataParallel", "checkpoint_module"]

_FILES = "`torch.distributed.checkpoint` saves parts; `torch_pjrt_fsdp.export_safetensors` makes whole files"
__getattr__ = absent(
    __name__,
    {
        "consolidate_sharded_model_checkpoints": _FILES,
        "consolidate_sharded_state_dicts": _FILES,
    },
)
