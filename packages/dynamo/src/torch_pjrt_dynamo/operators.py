"""How one node of a graph of operators is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.extend import record_call, run_on_cpu
from torch_pjrt.plugin import aten, client

_VIEWS = frozenset((aten.view.default, aten._unsafe_view.default))
_COLLECTIVES = "_c10d_functional"
_PLAIN = frozenset(("aten", "prims", _COLLECTIVES))


class CannotRecord(Exception):
    """A node needs the values of tensors, or has no rule: it must run by itself.

    node    of the FX graph.
    reason  in a line.
    """

    def __init__(self, node: torch.fx.Node, error: Exception) -> None:
        self.node = node
        self.error = error
        first = str(error).splitlines()[0] if str(error) else ""
        self.reason = f"{type(error).__name__}: {first}"
        super().__init__(f"{node.target}: {self.reason}")


def recorded(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of one call on the scratch tape's tensors."""
    if isinstance(target, torch._ops.OpOverload):
        kwargs = on_device(kwargs)
        if target.namespace not in _PLAIN and target in client().lowerings:
            return record_call(target, args, kwargs)
        if target in _VIEWS:
            return _viewed(target, args[0], args[1])
        return target(*args, **kwargs)
    return target(*args, **kwargs)


def _viewed(target: Any, x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """A view; a copy where the tensor's strides are not those that PyTorch traced, and do not allow it.

    PyTorch's meta functions and the kernels of the CPU, which ours follow, lay some results out differently.
    Nobody writes through what is viewed here: the graph has no writes but to its inputs.
    """
    try:
        return target(x, size)
    except RuntimeError:
        return x.reshape(size)


def on_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments in which a tensor of the host is one of the device: all of a graph is there."""
    if isinstance(kwargs.get("device"), torch.device):
        return {**kwargs, "device": torch.device("pjrt")}
    return kwargs


def run_island(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of one call on true tensors: by its kernel, or on the CPU where it has none."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace in _PLAIN:
            results = target(*args, **on_device(kwargs))
            return _waited(results) if target.namespace == _COLLECTIVES else results
        return run_on_cpu(target, args, kwargs)
    return target(*args, **kwargs)


def _waited(results: Any) -> Any:
    """A collective's results: the graph's own `wait_tensor` is recorded, and so waits for nothing."""
    for result in results if isinstance(results, (list, tuple)) else (results,):
        torch.ops._c10d_functional.wait_tensor(result)
    return results
