"""Of torch_xla's C++ module the functions that libraries call; the others raise."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.errors import UnsupportedError
from torch_xla.core.stablehlo_text import get_stablehlo
from torch_xla.distributed.spmd.marking import sharding_text as _get_xla_sharding_spec
from torch_xla.distributed.spmd.shards import from_cpu_shards as _global_tensor_from_cpu_shards
from torch_xla.distributed.spmd.shards import sharding_type as _get_xla_sharding_type

__all__ = [
    "_get_stablehlo",
    "_get_xla_sharding_spec",
    "_get_xla_sharding_type",
    "_global_tensor_from_cpu_shards",
    "_xla_get_tensor_id",
]


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that tensors share which are one: those with the same memory."""
    return tensor.untyped_storage().data_ptr()


def _get_stablehlo(tensors: Any, *unused: Any) -> str:
    """`xm.get_stablehlo`."""
    return get_stablehlo(tensors)


def _refuse(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise UnsupportedError(
        f"`torch_xla._XLAC.{name}` does not exist on torch-pjrt.",
        hint="it is a private function of torch_xla's C++; there is none here",
    )


__getattr__ = _refuse
