"""`torch.utils.checkpoint` computes again: what it starts from is set apart from what forward had.

Recorded into one program, the second computation would be equal to the first, node by node, and be merged
with it: by our passes, and by XLA. Its inputs come through `pjrt.optimization_barrier`, which gives what it
is given, and of which the compiler knows nothing.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.utils import checkpoint

from torch_pjrt.graph.signature import OPTIMIZATION_BARRIER, Slot, intern
from torch_pjrt.graph.tape import Value, push
from torch_pjrt.graph.tensor_spec import contiguous_spec
from torch_pjrt.tensor.storage.buffer import is_pjrt, wrap
from torch_pjrt.tensor.storage.view import value_of

# Parts with smaller inputs are merged all the same: what they keep is little, and time is saved.
_LEAST_BYTES = 1 << 16


def install() -> None:
    """Have both kinds of checkpoint do so; does nothing the second time."""
    module: Any = checkpoint
    frame: Any = getattr(module, "_CheckpointFrame", None)
    if getattr(module.detach_variable, "knows_pjrt", False):
        return
    if frame is not None:
        make = frame.__init__

        @wraps(make)
        def __init__(self: Any, recompute_fn: Any, *args: Any, **kwargs: Any) -> None:
            def recompute(*inputs: Any) -> Any:
                return recompute_fn(*_each_apart(inputs))

            make(self, recompute, *args, **kwargs)

        frame.__init__ = __init__
    detach = module.detach_variable

    @wraps(detach)
    def detach_variable(inputs: Any) -> Any:
        return detach(_each_apart(inputs) if isinstance(inputs, tuple) else inputs)

    detach_variable.knows_pjrt = True  # type: ignore[attr-defined]
    module.detach_variable = detach_variable


def _each_apart(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_apart, inputs))


def _apart(x: Any) -> Any:
    """The tensor on a value of its own; what is no plain tensor of the device as it is.

    It is a leaf: a checkpoint throws the graph of what it computes again away.
    """
    if type(x) is not torch.Tensor or not is_pjrt(x) or x.layout is not torch.strided:
        return x
    small = x.numel() * x.itemsize < _LEAST_BYTES
    if small or not x.is_contiguous() or not x.is_floating_point():
        return x
    with torch.no_grad():
        value = apart(value_of(x))
        return wrap(value, value.spec).requires_grad_(x.requires_grad)


def apart(value: Value) -> Value:
    """The value again, as the result of a node that no pass and no compiler looks through."""
    spec = contiguous_spec(value.spec.shape, value.spec.dtype)
    signature = intern(OPTIMIZATION_BARRIER, (Slot(0),), {}, (value.spec,), (spec,))
    return push(signature, value)
