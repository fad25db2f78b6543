"""DLPack: a `pjrt` tensor gives the memory of its array to others, without a copy where the device allows it.

`__dlpack__` and `__dlpack_device__` of tensors, and the older `to_dlpack`, would give the tensor's address,
at which there is nothing. What they give is to be read only: the array behind it belongs to
others too. They are replaced when PyTorch is imported: who imports `to_dlpack` by name has ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils import dlpack


def install() -> None:
    """Replace them; does nothing the second time."""
    if hasattr(dlpack.to_dlpack, "knows_pjrt"):  # pyright: ignore[reportPrivateImportUsage]
        return
    tensors: Any = torch.Tensor
    tensors.__dlpack__ = _for_pjrt(_capsule, tensors.__dlpack__)
    tensors.__dlpack_device__ = _for_pjrt(_device, tensors.__dlpack_device__)
    dlpack.to_dlpack = torch.to_dlpack = _for_pjrt(_capsule, dlpack.to_dlpack)  # type: ignore[attr-defined]


def _capsule(
    tensor: torch.Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: Any = None,
    copy: bool | None = None,
) -> Any:
    from torch_pjrt.client.wait import awaited
    from torch_pjrt.interop.arrays import to_jax

    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.dtype is torch.complex32:
        raise BufferError(
            "The device holds complex32 as complex64: export tensor.to(torch.complex64)"
        )
    if dl_device is not None:
        kind = int(dl_device[0])
        if kind != dlpack.DLDeviceType.kDLCPU and kind != _device(tensor)[0]:
            raise BufferError(f"Unsupported device_type: {kind}")
    array = to_jax(tensor)
    if len(array.sharding.device_set) > 1:
        if not array.is_fully_replicated:
            raise BufferError(
                "DLPack is of memory in one place; this tensor is spread over "
                f"{len(array.sharding.device_set)} chips: use tensor.cpu()"
            )
        array = array.addressable_data(0)
    if stream == -1:  # PyTorch's word for: wait for nothing
        stream = None
    if array.device.platform == "cpu":  # pyright: ignore[reportAttributeAccessIssue]
        awaited(array, "computing what is exported")
    return array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)  # pyright: ignore[reportCallIssue]


def _device(tensor: torch.Tensor) -> Any:
    from torch_pjrt.client.client import client

    chip = client().chip
    kinds = {
        "cpu": dlpack.DLDeviceType.kDLCPU,
        "gpu": dlpack.DLDeviceType.kDLCUDA,
        "rocm": dlpack.DLDeviceType.kDLROCM,
    }
    platform = "rocm" if "rocm" in chip.client.platform_version.lower() else chip.platform
    if platform not in kinds:
        raise BufferError(f"DLPack has no name for the device `{platform}`: use tensor.cpu()")
    return kinds[platform], chip.local_hardware_id or 0


def _for_pjrt(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def choose(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        mine = isinstance(tensor, torch.Tensor) and tensor.device.type == "pjrt"
        return (replacement if mine else original)(tensor, *args, **kwargs)

    choose.knows_pjrt = True  # type: ignore[attr-defined]
    return choose
