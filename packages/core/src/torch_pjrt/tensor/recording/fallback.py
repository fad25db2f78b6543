"""Operators that run on the CPU: read the arguments, run PyTorch's CPU kernel, bring the results back.

Warns once for each operator and counts every call. The result is PyTorch's own, so it is never wrong,
only slow: it syncs, and moves data both ways.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from torch_pjrt.observe.causes import because
from torch_pjrt.observe.counters import counters, of_thread
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording.argument_binding import mapped
from torch_pjrt.tensor.storage.buffer import is_pjrt, wrap_sized
from torch_pjrt.tensor.storage.mixed_devices import refuse_mixed
from torch_pjrt.tensor.storage.sparse_parts import fill, is_sparse, with_parts
from torch_pjrt.tensor.storage.transfer import download, overwrite, spec_on_device, upload
from torch_pjrt.tensor.storage.unsupported_tensors import refuse_layout
from torch_pjrt.tensor.storage.view import resize_as

# Reading a value is what these are for: no warning.
_READERS = frozenset(("aten::equal", "aten::_local_scalar_dense", "aten::is_nonzero"))

# Its kernel leaves a result out unless an argument needs a gradient, and its backward reads that unchecked.
_SEES_REQUIRES_GRAD = frozenset((aten._sparse_mm_reduce_impl.default,))


def run_on_cpu(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_asked_for: bool = False
) -> Any:
    """`op` by its CPU kernel; arguments that it writes to are written back.

    Where that is what the caller asks for, nobody is warned, and it is counted as a transfer only.

        >>> x = torch.zeros(2, device="pjrt")
        >>> run_on_cpu(torch.ops.aten.add.Tensor, (x, 1), {}, is_asked_for=True)
        tensor([1., 1.], device='pjrt:0')
    """
    refuse_mixed(op, args, kwargs)
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def to_cpu(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        known = copies.get(id(x))
        if known is None:
            known = copies[id(x)] = (x, _host_copy(x))
            if op in _SEES_REQUIRES_GRAD:
                known[1].requires_grad_(x.requires_grad)
        return known[1]

    with because(f"CPU fallback of {op}"):
        cpu_args = mapped(args, to_cpu, _is_of_device)
        cpu_kwargs = mapped(kwargs, to_cpu, _is_of_device)
    if not is_asked_for:
        _warn(op)  # not before: within a decomposition, reading an argument gives up
    with counters.timed("fallback_s"):
        results = op(*cpu_args, **cpu_kwargs)
    _write_back(op, args, kwargs, copies)
    return _to_device(results, {id(copy): original for original, copy in copies.values()})


def _is_of_device(x: object) -> bool:
    return is_pjrt(x) or isinstance(x, torch.device)


def _to_device(x: Any, originals: dict[int, torch.Tensor]) -> Any:
    """Results on the device; `originals` has what was copied to the CPU, by the copy's identity."""
    if isinstance(x, torch.Tensor):
        return originals[id(x)] if id(x) in originals else _device_copy(x)
    if isinstance(x, (list, tuple)):
        return type(x)(_to_device(i, originals) for i in x)
    return x


def _host_copy(x: torch.Tensor) -> torch.Tensor:
    return with_parts(x, download) if is_sparse(x) else download(x)


def _device_copy(x: torch.Tensor) -> torch.Tensor:
    if is_sparse(x):
        return with_parts(x, _device_copy)
    refuse_layout(x.layout)
    return wrap_sized(upload(x), spec_on_device(x))


def _write_back(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]],
) -> None:
    names = [a.name for a in op._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for argument in op._schema.arguments:
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        written = given.get(argument.name)
        for tensor in written if isinstance(written, (list, tuple)) else [written]:
            if tensor is None:
                continue
            copy = copies[id(tensor)][1]
            if is_sparse(tensor):
                fill(tensor, _device_copy(copy))
                continue
            if copy.shape != tensor.shape:
                resize_as(tensor, copy.shape, copy.stride())
            overwrite(tensor, copy)


def _warn(op: Any) -> None:
    name = str(op)
    counters.fallbacks[name] += 1
    of_thread.fallbacks += 1
    if counters.fallbacks[name] == 1 and op._schema.name not in _READERS:
        warnings.warn(
            f"`{name}` runs on the CPU: it has no lowering for this device. "
            "The result is right, but each call syncs and moves data; torch_pjrt.report() counts them.",
            stacklevel=4,
        )
