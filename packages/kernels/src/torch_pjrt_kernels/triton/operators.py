"""PyTorch's operators for Triton kernels on the device: on NVIDIA's cards a node of the program.

A kernel comes here by `wrap_triton(kernel)[grid](...)`, in a `triton_op` or anywhere else. No card has run
one: the calls are in programs that XLA compiled for cards that are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._C import DispatchKey

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import FunctionOp, after_import, intern, record, value_of, wrap
from torch_pjrt.plugin import Slot, contiguous_spec
from torch_pjrt_kernels.triton.call import Call, capability, launched, refused
from torch_pjrt_kernels.triton.compiled import Pointer, target_is
from torch_pjrt_kernels.triton.configurations import function_of, tried

Tensor = torch.Tensor
# What PyTorch's analysis is told where no card is known yet: what a kernel writes does not depend on it.
_ANY_CARD = (9, 0)
_MODULE = "torch._higher_order_ops.triton_kernel_wrap"
# What PyTorch 2.15 and others say besides: which arguments were passed by name, and the memory that views are
# of. Nothing that is computed depends on it.
_BESIDES = frozenset(("launch_kwargs", "tensor_bases"))
# What devices compute that have no Triton, by kernel.
_fallbacks: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()


def set_fallback(function: Any, fallback: Callable[..., Any]) -> None:
    """Have other devices than NVIDIA's cards compute this, where a function of `@triton.jit` is called."""
    _fallbacks[function] = fallback


def install() -> None:
    """Take such calls from when PyTorch's module is imported: Triton would look for its driver."""
    after_import(_MODULE, _register)
    after_import("torch._library.triton", _keep_kernels_wrapped)


def _register(module: Any) -> None:
    def mutation(**call: Any) -> None:
        _mutation(module, **_needed(call))

    def functional(**call: Any) -> dict[str, Tensor]:
        return _functional(module, **_needed(call))

    module.triton_kernel_wrapper_mutation.py_impl(DispatchKey.PrivateUse1)(mutation)
    module.triton_kernel_wrapper_functional.py_impl(DispatchKey.PrivateUse1)(functional)
    before = module.get_mutated_tensors
    if not hasattr(before, "before"):
        module.get_mutated_tensors = _knowing_the_card(before)


def _needed(call: dict[str, Any]) -> dict[str, Any]:
    return {name: given for name, given in call.items() if name not in _BESIDES}


def _knowing_the_card(before: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def get_mutated_tensors(
        kernel_idx: int, constant_args_idx: int, kwargs: dict[str, Any], *more: Any, **named: Any
    ) -> list[str]:
        if not _are_ours(kwargs.values()) or not find_spec("triton"):
            return before(kernel_idx, constant_args_idx, kwargs, *more, **named)
        with target_is(capability() or _ANY_CARD):
            return before(kernel_idx, constant_args_idx, kwargs, *more, **named)

    get_mutated_tensors.before = before  # type: ignore[attr-defined]
    return get_mutated_tensors


def _keep_kernels_wrapped(module: Any) -> None:
    """Have the body of a `triton_op` call its kernels as operators: left to itself it launches them.

    PyTorch spares a millisecond for tensors of CUDA that way, by this switch, which does not see tensors.
    """
    before = module.set_wrap_triton_enabled
    if not hasattr(before, "before"):

        def set_wrap_triton_enabled(enabled: bool) -> AbstractContextManager[None]:
            return before(True)

        set_wrap_triton_enabled.before = before  # type: ignore[attr-defined]
        module.set_wrap_triton_enabled = set_wrap_triton_enabled


def _are_ours(values: Any) -> bool:
    return any(isinstance(x, Tensor) and x.device.type == "pjrt" for x in values)


def _mutation(
    module: Any, *, kernel_idx: int, constant_args_idx: int, grid: list[Any],
    tma_descriptor_metadata: dict[str, Any], kwargs: dict[str, Any],
) -> None:  # fmt: skip
    if not find_spec("triton"):
        raise refused()
    names = module.get_mutated_tensors(
        kernel_idx, constant_args_idx, dict(kwargs), tma_descriptor_metadata
    )
    new = _recorded(
        module, kernel_idx, constant_args_idx, grid, tma_descriptor_metadata, kwargs, names
    )
    for name, x in new.items():
        kwargs[name].copy_(x)


def _functional(
    module: Any, *, kernel_idx: int, constant_args_idx: int, grid: list[Any],
    tma_descriptor_metadata: dict[str, Any], kwargs: dict[str, Any], tensors_to_clone: list[str],
) -> dict[str, Tensor]:  # fmt: skip
    return _recorded(
        module, kernel_idx, constant_args_idx, grid, tma_descriptor_metadata, kwargs,
        tensors_to_clone,
    )  # fmt: skip


def _recorded(
    module: Any, kernel_idx: int, constant_args_idx: int, grid: list[Any],
    tma: dict[str, Any], kwargs: dict[str, Any], written: Sequence[str],
) -> dict[str, Tensor]:  # fmt: skip
    """One node: what the tensors of these names hold afterwards."""
    if not find_spec("triton"):
        raise refused()
    if tma:
        raise LoweringError(
            "Kernels with TMA descriptors do not run on `pjrt`.", saw=", ".join(tma)
        )
    kernel = module.kernel_side_table.get_kernel(kernel_idx)
    constants = module.kernel_side_table.get_constant_args(constant_args_idx)
    names = function_of(kernel).arg_names
    tensors = {name: kwargs[name] for name in names if isinstance(kwargs.get(name), Tensor)}
    for name, x in tensors.items():
        if x.device.type != "pjrt" or not x.is_contiguous():
            raise LoweringError(
                f"The kernel `{_name(kernel)}` is given a tensor that it cannot read.",
                saw=f"`{name}` of {x.device}, with strides {list(x.stride())} for {list(x.shape)}",
                expected="a contiguous tensor of `pjrt`",
                hint=f"pass {name}.contiguous()",
            )
    position = {name: i for i, name in enumerate(tensors)}
    pointers = {name: Pointer(x.dtype, tuple(x.shape)) for name, x in tensors.items()}
    given = {**kwargs, **constants, **pointers}
    call = Call(
        kernel,
        tuple(given.items()),
        tuple(tuple(map(int, each)) for each in grid),
        tried(),
        _fallbacks.get(function_of(kernel)),
    )
    op = _op(call, tuple(position[name] for name in written))
    values = [value_of(x) for x in tensors.values()]
    specs = tuple(contiguous_spec(v.spec.shape, v.spec.dtype) for v in values)
    outs = tuple(specs[position[name]] for name in written)
    slots = tuple(map(Slot, range(len(values))))
    signature = intern(op, slots, {}, specs, outs, returns="list")
    made = record(signature, values, [])
    return {name: wrap(value, spec) for name, value, spec in zip(written, made, outs, strict=True)}


# Equal calls are one operator, so that equal steps are one program. 1, 1.0 and True are not equal calls.
def _op(call: Call, written: tuple[int, ...]) -> FunctionOp:
    return _op_of(call, written, tuple(repr(value) for _, value in call.arguments))


@lru_cache(maxsize=1024)
def _op_of(call: Call, written: tuple[int, ...], numbers: tuple[str, ...]) -> FunctionOp:
    return FunctionOp(f"triton.{_name(call.kernel)}", partial(launched, call, written))


def _name(kernel: Any) -> str:
    return function_of(kernel).__name__
