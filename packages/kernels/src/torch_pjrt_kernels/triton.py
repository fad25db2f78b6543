"""Kernels written in Triton, which no device of ours runs yet: what is said of them in compiled functions."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch._C import DispatchKey

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import after_import
from torch_pjrt.plugin import client

_MODULE = "torch._higher_order_ops.triton_kernel_wrap"
_OPERATORS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")


def install() -> None:
    """Say it from when PyTorch's module is imported: Triton's own error would be one of its driver."""
    after_import(_MODULE, _register)


def _register(module: ModuleType) -> None:
    for name in _OPERATORS:
        op = getattr(module, name, None)
        if op is not None:
            op.py_impl(DispatchKey.PrivateUse1)(_refused)


def _refused(*args: Any, **kwargs: Any) -> Any:
    raise LoweringError(
        "A kernel written in Triton cannot run on tensors of `pjrt`.",
        saw=f"a device of {client().device.name}",
        hint="call it in a `torch.library.custom_op`, not a `triton_op`, and give that a rule in JAX "
        "(`torch_pjrt.extend.lowers`), or write the kernel in Pallas (`torch_pjrt_kernels.pallas_op`)",
    )
