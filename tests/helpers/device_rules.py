"""What CUDA says of operators whose tensors are on several devices, from PyTorch's own description of them.

No CUDA is needed. PyTorch's fake tensors take composite operators apart as on CUDA, and each operator that
comes out is judged by the rules of its CUDA kernel:

    exact       the wrapper compares all devices first: `native_functions.yaml`, where it says no `NoCheck`
    iterator    a kernel by `TensorIterator`: one CPU tensor without dims may stand among its inputs
    its own     a row of `OWN`, as the kernel's source says
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torchgen
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

Tensors = list[tuple[str, torch.Tensor]]  # with the names of their arguments


class Refused(Exception):
    """CUDA would refuse the call."""


class Unknown(Exception):
    """Fake tensors cannot run the call: there is nothing to compare with."""


@cache
def unchecked() -> frozenset[str]:
    """The overloads (`add.Tensor`) whose CUDA wrapper leaves devices to the kernel."""
    folder = os.path.join(os.path.dirname(torchgen.__file__), "packaged", "ATen", "native")
    found, name = set(), ""
    with open(os.path.join(folder, "native_functions.yaml")) as file:
        for line in file:
            if line.startswith("- func: "):
                name = line.removeprefix("- func: ").partition("(")[0]
            elif line.strip().startswith("device_check: NoCheck"):
                found.add(name)
    return frozenset(found)


def _numbers(*names: str) -> Callable[[Tensors], bool]:
    """These arguments may be CPU tensors without dims, and no others."""
    return lambda on_cpu: all(name in names and not t.ndim for name, t in on_cpu)


def _whole(*names: str) -> Callable[[Tensors], bool]:
    """These arguments may be CPU tensors of any shape, and no others."""
    return lambda on_cpu: all(name in names for name, _ in on_cpu)


def _indices(on_cpu: Tensors) -> bool:
    return all(name == "indices" or (name == "values" and not t.ndim) for name, t in on_cpu)


def _any_number(on_cpu: Tensors) -> bool:
    return all(not t.ndim for _, t in on_cpu)


def _one_number(on_cpu: Tensors) -> bool:
    return len(on_cpu) == 1 and not on_cpu[0][1].ndim


def _inputs(op: Any) -> int:
    arguments = op._schema.arguments
    return sum("Tensor" in str(a.type) for a in arguments if not a.is_out)


#   the operators' names                which CPU tensors their CUDA kernels take beside others, and why
OWN: dict[str, Callable[[Tensors], bool]] = {
    # `where` moves what has no dims to the device.
    "where": _any_number,
    # The kernels read one operand as a number, and refuse the other two in words.
    "addcmul": _numbers("tensor2"),
    "addcdiv": _numbers("tensor2"),
    # `value.item()`
    "fill": _numbers("value"),
    "masked_fill": _numbers("value"),
    "index_fill": _numbers("value"),
    # Indices are moved to the indexed tensor's device, and so is a value without dims.
    "index": _indices,
    "_unsafe_index": _indices,
    "index_put": _indices,
    "_unsafe_index_put": _indices,
    "_index_put_impl": _indices,
    # `p.to(kCUDA)`
    "bernoulli": _whole("p"),
    # `clone()`, then `copy_`
    "as_strided_scatter": _whole("src"),
    "diagonal_scatter": _whole("src"),
    "select_scatter": _whole("src"),
    "slice_scatter": _whole("src"),
    # Composite: their parts are kernels by TensorIterator.
    "binary_cross_entropy_with_logits": _any_number,
    "dist": _one_number,
    "allclose": _one_number,
    "ldexp": _one_number,
    "_trilinear": _one_number,
    "_unsafe_masked_index": _whole("indices"),
    "_unsafe_masked_index_put_accumulate": _whole("indices"),
    "soft_margin_loss": _one_number,
    # `matmul`, then `add_`; `addmm` of an input of two dims.
    "linear": _numbers("bias"),
    # A `TensorIterator` that was not told to take numbers.
    "clamp": _whole(),
    "binary_cross_entropy": _whole(),
}


def _value_moves(tensors: Tensors) -> bool:
    """All but a value without dims are on the CPU: the value is moved there."""
    return all(t.device.type == "cpu" or (n == "values" and not t.ndim) for n, t in tensors)


#   the operators' names    what the kernels take whatever the table above says, and where their result is the
#                           first tensor's
TAKEN: dict[str, Callable[[Tensors], bool]] = {
    "index_put": _value_moves,
    "_unsafe_index_put": _value_moves,
    "_index_put_impl": _value_moves,
    # Zeros are made where the first is, and that is all.
    "_trilinear": lambda tensors: any(not t.numel() for _, t in tensors),
}
#   the operators' names    what they refuse whatever the table says
REFUSED: dict[str, Callable[[Tensors], bool]] = {
    "linear": lambda tensors: tensors[0][1].ndim == 2,
}

# They move data between devices, or look at sizes only. `ctc_loss` moves lengths and targets beforehand.
FREE = frozenset(
    (
        "copy",
        "fill",
        "is_same_size",
        "_to_copy",
        "_copy_from",
        "to",
        "expand_as",
        "view_as",
        "reshape_as",
        "resize_as",
        "lift_fresh",
        "_foreach_copy",
        "linspace",
        "logspace",
        "_has_same_storage_numel",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "as_strided_scatter",
        "diagonal_scatter",
        "select_scatter",
        "slice_scatter",
        "_ctc_loss",
        "_use_cudnn_ctc_loss",
    )
)


def name_of(op: Any) -> str:
    return op._schema.name.partition("::")[2].removesuffix("_")


def is_refused(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether CUDA's kernel of an operator refuses a call for the devices of its tensors."""
    tensors = list(tensors_of(op, args, kwargs))
    if len({t.device.type for _, t in tensors}) < 2:
        return False
    name = name_of(op)
    if name in FREE or (name in TAKEN and TAKEN[name](tensors)):
        return False
    if name in REFUSED and REFUSED[name](tensors):
        return True
    on_cpu = [(n, t) for n, t in tensors if t.device.type == "cpu"]
    written = {a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write}
    if any(n in written for n, _ in on_cpu):
        return True
    if name in OWN:
        return not OWN[name](on_cpu)
    overload = op._schema.name.partition("::")[2]
    if op._schema.overload_name:
        overload += f".{op._schema.overload_name}"
    return overload not in unchecked() or _inputs(op) < 2 or not _one_number(on_cpu)


def tensors_of(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    names = [a.name for a in op._schema.arguments]
    for name, given in (*zip(names, args, strict=False), *kwargs.items()):
        for x in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(x, torch.Tensor):
                yield name, x


class _Judge(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        devices = {t.device.type for _, t in tensors_of(func, args, kwargs)}
        if func.namespace != "aten" and len(devices) > 1:
            raise Unknown(f"{func}: what it is made of is not seen")
        if is_refused(func, args, kwargs):
            raise Refused(str(func))
        if len(devices) > 1 and name_of(func) not in FREE:  # the fake kernel knows fewer rules
            tensors = list(tensors_of(func, args, kwargs))
            is_taken = name_of(func) in TAKEN and TAKEN[name_of(func)](tensors)
            device = tensors[0][1].device.type if is_taken else "cuda"
            args, kwargs = _on(device, args), _on(device, kwargs)
        return func(*args, **kwargs)


def _on(device: str, x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    if isinstance(x, (list, tuple)):
        return type(x)([_on(device, part) for part in x])
    return {k: _on(device, v) for k, v in x.items()} if isinstance(x, dict) else x


def verdict(call: Callable[[Callable[[torch.Tensor, bool], torch.Tensor]], object]) -> str | None:
    """Which operator CUDA refuses in a call, or None.

    `call` is given what makes a tensor like another one, on the device or on the CPU.
    """
    mode = FakeTensorMode()

    def placed(t: torch.Tensor, on_device: bool) -> torch.Tensor:
        with mode:
            made = torch.empty_strided(
                t.shape, t.stride(), dtype=t.dtype, device="cuda" if on_device else "cpu"
            )
        return made.requires_grad_(t.requires_grad)

    try:
        with mode, _Judge():
            call(placed)
    except Refused as refused:
        return str(refused)
    except Unknown:
        raise
    except Exception as error:
        raise Unknown(f"{type(error).__name__}: {error}") from None
    return None
