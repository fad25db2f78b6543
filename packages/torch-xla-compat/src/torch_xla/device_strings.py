"""The device strings "xla" and "xla:0", which mean `pjrt:0`.

PyTorch knows a device type `xla` and asks the dispatcher's key XLA for its memory. Two operators of that key,
registered by `torch.library`, make tensors of `pjrt` instead: that is all for factories and for "xla:0".
`Tensor.to("xla")`, `torch.tensor(..., device="xla")` and `torch.as_tensor` ask PyTorch's C++ for the current
device of the type first, which a package in Python cannot register; `torch.autocast("xla")` is about
operators on tensors of that type alone. So these four are replaced, here and nowhere else;
`TORCH_PJRT_XLA_STRINGS=0` leaves them alone. If PyTorch let a package register a device guard for this type
from Python, as for `privateuseone`, none of it would be needed. Tried with PyTorch 2.13.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.plugin import aten

DEVICE = "pjrt:0"
_library: list[torch.library.Library] = []


def understand() -> None:
    """Make tensors of the device `xla` tensors of `pjrt`, once in a process."""
    if _library:
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _on_pjrt(aten.empty.memory_format), "XLA")
    library.impl("empty_strided", _on_pjrt(aten.empty_strided.default), "XLA")
    _library.append(library)
    if os.environ.get("TORCH_PJRT_XLA_STRINGS") != "0":
        torch.Tensor.to = _Method(torch.Tensor.to)
        torch.tensor = _known_to_torchscript(_translating(torch.tensor), "aten::tensor")
        torch.as_tensor = _known_to_torchscript(_translating(torch.as_tensor), "aten::as_tensor")
        torch.autocast.__init__ = _with_own_autocast(torch.autocast.__init__)


def own(device: Any) -> Any:
    """`device`, or `pjrt:0` for what means it: "xla", "xla:0", None. Everything else stays as it is."""
    if device is None:
        return torch.device(DEVICE)
    if isinstance(device, (str, torch.device)) and torch.device(device).type == "xla":
        return torch.device(DEVICE)
    return device


def _known_to_torchscript(function: Callable[..., Any], operator: str) -> Callable[..., Any]:
    """`function`, which TorchScript, where there is one, takes for the operator as it does PyTorch's own."""
    register = getattr(getattr(torch.jit, "_builtins", None), "_register_builtin", None)
    if register is not None:
        register(function, operator)
    return function


def _with_own_autocast(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def initialize(self: Any, device_type: str, *args: Any, **options: Any) -> None:
        function(self, "pjrt" if _is_xla(device_type) else device_type, *args, **options)

    return initialize


class _Method:
    """A method of `Tensor` that knows "xla". It equals the one that it replaces, and has its hash.

    PyTorch calls `__torch_function__` with what the class has, and tables that were made before (of modules
    without a size, of libraries with subclasses of tensors) have the old one.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        functools.update_wrapper(self, method)
        self._method = method
        self._call = _translating(method)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._call(*args, **options)

    def __get__(self, tensor: torch.Tensor | None, owner: type) -> Callable[..., Any]:
        return self if tensor is None else types.MethodType(self._call, tensor)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._method

    def __hash__(self) -> int:
        return hash(self._method)


def _on_pjrt(factory: Any) -> Callable[..., torch.Tensor]:
    def make(
        *args: Any, device: Any = None, pin_memory: Any = None, **options: Any
    ) -> torch.Tensor:
        return factory(*args, **options, device=DEVICE)

    return make


def _is_xla(device: Any) -> bool:
    kind = type(device)
    return (kind is str and device[:3] == "xla") or (kind is torch.device and device.type == "xla")


def _translating(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if len(args) > 1 and _is_xla(args[1]):
            args = (args[0], own(args[1]), *args[2:])
        if "device" in options and _is_xla(options["device"]):
            options["device"] = own(options["device"])
        return function(*args, **options)

    return call
