"""The device strings "xla" and "xla:0", which mean `pjrt:0`.

PyTorch knows a device type `xla` and asks the dispatcher's key XLA for its memory. Operators of that key,
registered by `torch.library`, make tensors of `pjrt` instead: that is all for most factories, and for tensors
that are moved to "xla:0". `Tensor.to("xla")` and the functions of `REPLACED` ask PyTorch's C++ for the
current device of the type first, which a package in Python cannot register; `torch.autocast("xla")` is about
operators on tensors of that type alone; `torch.Generator("xla")` asks for a library in C++; a default device
reaches PyTorch's own functions. So these are replaced, here and nowhere else; `TORCH_PJRT_XLA_STRINGS=0`
leaves them alone. If PyTorch let a package
register a device guard for this type from Python, as for `privateuseone`, none of it would be needed. Tried
with PyTorch 2.13.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import DeviceContext

from torch_pjrt.extend import pass_over_lines
from torch_pjrt.plugin import aten

DEVICE = "pjrt:0"

# Factories that reach the dispatcher; the key XLA has these for all of them.
OPERATORS = {
    "empty.memory_format": aten.empty.memory_format,
    "empty_strided": aten.empty_strided.default,
    "tril_indices": aten.tril_indices.default,
    "triu_indices": aten.triu_indices.default,
    "kaiser_window": aten.kaiser_window.default,
    "kaiser_window.periodic": aten.kaiser_window.periodic,
    "kaiser_window.beta": aten.kaiser_window.beta,
}
#   of PyTorch      function, and which argument may be a device: else a keyword alone
REPLACED: list[tuple[Any, str, int | None]] = [
    (torch,         "tensor",                   None),
    (torch,         "as_tensor",                None),
    (torch,         "asarray",                  None),
    (torch,         "range",                    None),
    (torch,         "sparse_coo_tensor",        None),
    (torch,         "sparse_csr_tensor",        None),
    (torch,         "sparse_csc_tensor",        None),
    (torch,         "sparse_bsr_tensor",        None),
    (torch,         "sparse_bsc_tensor",        None),
    (torch,         "sparse_compressed_tensor", None),
    (torch.Tensor,  "to",                       1),
    (torch.Tensor,  "new_tensor",               None),
]  # fmt: skip
# Functions that TorchScript, where there is one, takes for operators.
_OF_TORCHSCRIPT = {
    "tensor": "aten::tensor",
    "as_tensor": "aten::as_tensor",
    "asarray": "aten::asarray",
    "range": "aten::range",
    "sparse_coo_tensor": "aten::sparse_coo_tensor",
}
_library: list[torch.library.Library] = []


def understand() -> None:
    """Make tensors of the device `xla` tensors of `pjrt`, once in a process."""
    if _library:
        return
    library = torch.library.Library("aten", "IMPL")
    for name, operator in OPERATORS.items():
        library.impl(name, _on_pjrt(operator), "XLA")
    _library.append(library)
    pass_over_lines(__file__)
    if os.environ.get("TORCH_PJRT_XLA_STRINGS") != "0":
        for owner, name, position in REPLACED:
            setattr(owner, name, _Replacement(owner, name, position))
        torch.autocast.__init__ = _with_own_autocast(torch.autocast.__init__)
        DeviceContext.__init__ = _translating(DeviceContext.__init__, 1)
        generators: Any = type(torch.Generator)
        generators.__call__ = _translating(generators.__call__, 1)
        torch.serialization.register_package(5, _no_tag, _from_file)  # pyright: ignore[reportArgumentType]


def own(device: Any) -> Any:
    """`device`, or `pjrt:0` for what means it: "xla", "xla:0", None. Everything else stays as it is."""
    if device is None:
        return torch.device(DEVICE)
    if isinstance(device, (str, torch.device)) and torch.device(device).type == "xla":
        return torch.device(DEVICE)
    return device


class _Replacement:
    """A function or method of PyTorch's that knows "xla". It equals the one that it replaces, and has its
    hash.

    PyTorch calls `__torch_function__` with what its module or class has now, and tables that were made before
    (of factories that a default device is given to, of modules without a size, of libraries with subclasses
    of tensors) have the old one.
    """

    def __init__(self, owner: Any, name: str, position: int | None) -> None:
        function = getattr(owner, name)
        functools.update_wrapper(self, function)
        self._owner, self._name, self._function = owner, name, function
        self._call = _translating(function, position)
        register = getattr(getattr(torch.jit, "_builtins", None), "_register_builtin", None)
        if owner is torch and name in _OF_TORCHSCRIPT and register is not None:
            register(self, _OF_TORCHSCRIPT[name])

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._call(*args, **options)

    def __get__(self, tensor: torch.Tensor | None, owner: type) -> Callable[..., Any]:
        if tensor is None or self._owner is torch:
            return self
        return types.MethodType(self._call, tensor)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._function

    def __hash__(self) -> int:
        return hash(self._function)

    def __reduce__(self) -> Any:  # as PyTorch's: by its name
        return self._name if self._owner is torch else (getattr, (self._owner, self._name))

    def __deepcopy__(self, known: Any) -> _Replacement:
        return self


def _with_own_autocast(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def initialize(self: Any, device_type: str, *args: Any, **options: Any) -> None:
        function(self, "pjrt" if _is_xla(device_type) else device_type, *args, **options)

    return initialize


def _no_tag(storage: object) -> None:
    return None  # what is saved is of `pjrt`


def _from_file(storage: Any, location: str) -> Any:
    """The storage that `torch.load(map_location="xla")` reads, or that torch_xla has saved."""
    if not _is_xla(location):
        return None
    return torch.serialization.default_restore_location(storage, DEVICE)


def _on_pjrt(factory: Any) -> Callable[..., torch.Tensor]:
    def make(
        *args: Any, device: Any = None, pin_memory: Any = None, **options: Any
    ) -> torch.Tensor:
        return factory(*args, **options, device=DEVICE)

    return make


def _is_xla(device: Any) -> bool:
    kind = type(device)
    return (kind is str and device[:3] == "xla") or (kind is torch.device and device.type == "xla")


def _translating(function: Callable[..., Any], position: int | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if position is not None and len(args) > position and _is_xla(args[position]):
            args = (*args[:position], own(args[position]), *args[position + 1 :])
        if "device" in options and _is_xla(options["device"]):
            options["device"] = own(options["device"])
        return function(*args, **options)

    return call
