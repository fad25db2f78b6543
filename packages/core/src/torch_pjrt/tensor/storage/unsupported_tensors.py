"""Tensors that the device cannot hold: nested and quantized ones are refused, in words.

Sparse ones are containers of dense tensors (`sparse.py`). An embedding's gradient may not be one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from torch_pjrt.errors import UnsupportedError
from torch_pjrt.overloads import Absent, named

#   dispatch key               what such a tensor is   what to do instead
KINDS: list[tuple[str, str, str]] = [
    ("NestedTensorPrivateUse1", "nested", "use layout=torch.jagged, or pad to one shape"),
    ("QuantizedPrivateUse1", "quantized", "compute in torch.int8 or torch.bfloat16"),
]


# They make nested tensors of dense ones. What they made could end the process: PyTorch asks it for its sizes
# where nothing may be raised.
_NESTING = (
    "_nested_from_padded",
    "_nested_from_padded_and_nested_example",
    "_nested_tensor_from_tensor_list",
    "_nested_view_from_buffer",
    "_nested_view_from_buffer_copy",
)

# What PyTorch asks a nested tensor where nothing may be raised. One of the device can still come about: of
# tensors of the CPU, by `torch.nested.nested_tensor([...], device="pjrt")`.
_ASKED_OF_NESTED = (
    "_nested_tensor_size",
    "_nested_tensor_strides",
    "_nested_tensor_storage_offsets",
)


def refuse_other_kinds(
    fallbacks: torch.library.Library, kernels: torch.library.Library, key_of_dense: str
) -> None:
    """Register, for each kind, a fallback that raises, and kernels that raise for what makes such tensors."""
    for key, kind, hint in KINDS:
        fallbacks.fallback(_refusal(kind, hint), key)
    nested, hint = KINDS[0][1:]
    for name in _NESTING:
        op = named(name)
        if not isinstance(op, Absent):
            kernels.impl(op, _partial(_refusal(nested, hint), op), key_of_dense)
    for name in _ASKED_OF_NESTED:
        op = named(name)
        if not isinstance(op, Absent):
            kernels.impl(op, partial(op._op_dk, torch._C.DispatchKey.NestedTensorCPU), KINDS[0][0])


def _partial(refuse: Callable[..., Any], op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: refuse(op, *args, **kwargs)


def _refusal(kind: str, hint: str) -> Any:
    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"`{op}`: a pjrt tensor cannot be {kind}.", hint=hint)

    return refuse


def refuse_sparse_gradient(*args: Any, **kwargs: Any) -> Any:
    """Raise in place of the gradient of an embedding with `sparse=True`."""
    raise UnsupportedError(
        "The gradient of an embedding would be sparse: on a device it must be dense.",
        hint="leave `sparse=True` out; the gradient is dense then",
    )


def refuse_layout(layout: torch.layout) -> None:
    """Raise for what an operator on dense tensors would give that is not dense."""
    if layout == torch.strided:
        return
    if layout == torch.sparse_coo:  # of those that can be recorded, only embedding bags do this
        refuse_sparse_gradient()
    raise UnsupportedError(f"The result would have the layout {layout}: a pjrt tensor cannot.")
