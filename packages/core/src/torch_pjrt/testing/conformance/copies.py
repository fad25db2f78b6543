"""Copies of a call's arguments on a device, with the same strides and the same sharing of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from torch_pjrt.overloads import aten


class Copier:
    """Copies tensors to `device`. Tensors that share a storage share one there, so that aliasing stays."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._storages: dict[Any, torch.Tensor] = {}

    def __call__(self, tree: Any) -> Any:
        """The same tree of lists, tuples, dicts and slices, its tensors and devices replaced."""
        return tree_map(self._leaf, tree)

    def _leaf(self, x: Any) -> Any:
        if isinstance(x, slice):
            return slice(*map(self._leaf, (x.start, x.stop, x.step)))
        if isinstance(x, torch.device) and x.type == "cpu":
            return torch.device(self.device)
        return self._tensor(x) if isinstance(x, torch.Tensor) else x

    def _tensor(self, source: torch.Tensor) -> torch.Tensor:
        x = source.detach()
        if x.device.type != "cpu":
            return source  # of another device on purpose
        if source.layout is not torch.strided:
            copy = x.clone() if self.device == "cpu" else x.to(self.device)
        else:
            copy = self._flat(x).as_strided(x.shape, x.stride(), x.storage_offset())
            copy = copy.conj() if x.is_conj() else copy
            copy = aten._neg_view(copy) if x.is_neg() else copy
            copy = copy.detach()
        return copy.requires_grad_(source.requires_grad)

    def _flat(self, x: torch.Tensor) -> torch.Tensor:
        """The whole storage of `x` as one dimension of its dtype, copied once."""
        storage = x.untyped_storage()
        key = (storage._cdata, x.dtype)
        if key not in self._storages:
            n = storage.nbytes() // x.dtype.itemsize
            flat = torch.empty(0, dtype=x.dtype).set_(storage, 0, (n,), (1,))
            self._storages[key] = flat.clone() if self.device == "cpu" else flat.to(self.device)
        return self._storages[key]


def on_device_named(kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    """The keyword arguments with a device given as text replaced as well."""
    return {k: device if k == "device" and v == "cpu" else v for k, v in kwargs.items()}


def in_double(tree: Any) -> Any:
    """The same tree with floating tensors in float64, complex ones in complex128, dtypes too."""
    wider = {
        torch.float16: torch.float64,
        torch.bfloat16: torch.float64,
        torch.float32: torch.float64,
        torch.complex32: torch.complex128,
        torch.complex64: torch.complex128,
    }

    def widened(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return wider.get(x, x)
        if isinstance(x, torch.Tensor) and x.dtype in wider:
            return x.detach().to(wider[x.dtype]).requires_grad_(x.requires_grad)
        return x

    return tree_map(widened, tree)
