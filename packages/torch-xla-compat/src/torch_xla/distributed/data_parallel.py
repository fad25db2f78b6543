"""`torch_xla.distributed.data_parallel`: threads for several devices, which torch_xla has given up, too."""

from __future__ import annotations

from torch_xla.absent import absent

__getattr__ = absent(
    __name__,
    {"DataParallel": "`torch_xla.launch` with PyTorch's DDP, or `spmd.mark_sharding` of the batch"},
)
