"""The older place of names of `torch_xla.runtime`: Lightning asks here where it finds no release."""

from torch_xla.core.xla_model import broadcast_master_param
from torch_xla.runtime import (
    device_type,
    global_ordinal,
    local_ordinal,
    process_count,
    process_index,
    using_pjrt,
    world_size,
)

__all__ = [
    "broadcast_master_param",
    "device_type",
    "global_ordinal",
    "local_ordinal",
    "process_count",
    "process_index",
    "using_pjrt",
    "world_size",
]
