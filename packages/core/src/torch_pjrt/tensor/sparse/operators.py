"""Operators on sparse tensors.

Three ways, of which the first that fits is taken:

    KERNELS    written with the device's operators on the parts (`sparse_kernels.py`)
    CONTAINED  PyTorch's CPU kernel: it calls operators on the parts, on any device, and reads no memory
    the CPU    the parts go to the CPU, and what comes of it comes back; counted as every fallback is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from torch_pjrt.overloads import Absent, aten, named
from torch_pjrt.tensor.recording.fallback import run_on_cpu
from torch_pjrt.tensor.sparse.kernels import COMPRESSED, COO, DENSE, KERNELS
from torch_pjrt.tensor.storage.unsupported_tensors import refuse_sparse_gradient

_Keys = torch._C.DispatchKeySet
_Key = torch._C.DispatchKey

# The CPU's key for each of ours.
_ON_CPU = {
    COO: _Keys(_Key.SparseCPU),
    COMPRESSED: _Keys(_Key.SparseCsrCPU),
    DENSE: _Keys(_Key.CPU),
}

# They give 0 for 0, so they are applied to the values.
_UNARY = """
    abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac log1p neg rad2deg relu round sgn
    sign sin sinh sqrt tan tanh trunc
"""
_UNARY_TO_BOOL = "isinf isnan isneginf isposinf signbit"
_OF_COO = """
    _coalesced_ _dimI _dimV _indices _nnz _sparse_broadcast_to _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _values cat clone copy_ copy_sparse_to_sparse_ dense_dim
    empty.memory_format empty_like indices is_coalesced nan_to_num permute resize_as_sparse_ sparse_dim
    sparse_resize_ sparse_resize_and_clear_ threshold_backward unsqueeze values zero_
"""
_OF_COMPRESSED = """
    _conj_physical _nnz ccol_indices clone col_indices copy_ crow_indices dense_dim empty.memory_format
    empty_like resize_as_sparse_ row_indices sparse_dim values
"""
_OF_DENSE = "_to_sparse _to_sparse.sparse_dim _to_sparse_csr _to_sparse_csc"

_COMPOSED = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")

EACH = (*_UNARY.split(), *_UNARY_TO_BOOL.split(), *(f"{name}_" for name in _UNARY.split()))

CONTAINED: dict[str, frozenset[str]] = {
    COO: frozenset((*EACH, *_OF_COO.split())),
    COMPRESSED: frozenset((*EACH, *_OF_COMPRESSED.split())),
    DENSE: frozenset(_OF_DENSE.split()),
}


def kernel_of(op: Any, key: str) -> Callable[..., Any]:
    """What computes `op` for tensors of dispatch key `key`."""
    if (op, key) in KERNELS:
        return KERNELS[op, key]
    if _name(op) in CONTAINED[key]:
        return partial(op.redispatch, _ON_CPU[key])
    return lambda *args, **kwargs: run_on_cpu(op, args, kwargs)


def call(key: str, op: Any, *args: Any, **kwargs: Any) -> Any:
    """`op(*args, **kwargs)`, for an operator that the dispatcher has no kernel of."""
    return kernel_of(op, key)(*args, **kwargs)


def kernels() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(operator, dispatch key, kernel) of all that must be registered with the dispatcher."""
    for op, key in _registered():
        if not isinstance(op, Absent):
            yield op, key, kernel_of(op, key)
    refused = aten.embedding_sparse_backward.default
    if not isinstance(refused, Absent):
        yield refused, DENSE, refuse_sparse_gradient
        yield refused, f"Autograd{DENSE}", refuse_sparse_gradient


def _registered() -> Iterator[tuple[Any, str]]:
    """Operators which PyTorch would else compose of others, as if the tensor were dense, by dispatch key."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for key, cpu_key in ((COO, "SparseCPU"), (COMPRESSED, "SparseCsrCPU")):
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(cpu_key):
            if name.startswith("aten::") and any(has_kernel(name, way) for way in _COMPOSED):
                yield named(name.removeprefix("aten::")), key
    for name in CONTAINED[DENSE]:
        yield named(name), DENSE


def _name(op: Any) -> str:
    base, overload = op._schema.name.removeprefix("aten::"), op._schema.overload_name
    return f"{base}.{overload}" if overload else base
