"""Compare one lowering rule with PyTorch on CPU: values, dtypes and shapes.

Shapes that the rule's signature says are checked on the way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from checked_shapes import checked
from torch_pjrt import dtypes
from torch_pjrt.lowering.table import Lowering

# Keyword arguments that the engine never hands to a rule.
DROPPED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")

# What is compiled runs once: no time for LLVM's optimizations.
QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@dataclass(frozen=True)
class Sample:
    """One call of an operator. `compare` replaces the comparison where values are random or not unique."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    why: str = ""  # why the tolerance is wider than PyTorch's own, or the comparison its own
    compare: Callable[[Any, Any], None] | None = None

    def __str__(self) -> str:
        shapes = ",".join(str(_brief(a)) for a in self.args)
        return f"{self.op.name()}({shapes})"


def sample(op: Any, *args: Any, **kwargs: Any) -> Sample:
    """A sample with PyTorch's own tolerances."""
    return Sample(op, args, kwargs)


def is_implemented(op: Any, *args: Any) -> bool:
    """Whether the CPU of this PyTorch has a kernel for such arguments: that of another version may."""
    try:
        op(*args)
    except NotImplementedError:
        return False
    return True


def check(sample: Sample, lowering: Lowering) -> None:
    """Run the rule jitted and PyTorch's CPU kernel on the same inputs, and compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a kernel's own are PyTorch's, and no rule's
        expected = sample.op(*sample.args, **sample.kwargs)
    kwargs = {k: v for k, v in sample.kwargs.items() if k not in DROPPED}
    with jax.enable_x64(True):
        tensors: list[torch.Tensor] = []
        template = _map((sample.args, kwargs), lambda t: _hole(tensors, t))
        key = jax.random.key(0, impl="threefry2x32")

        def run(arrays: list[jax.Array]) -> Any:
            args, kw = _fill(template, arrays)
            return checked(lowering.rule)(*((key,) if lowering.random else ()), *args, **kw)

        arrays = [jax.numpy.asarray(to_numpy(t)) for t in tensors]
        program = jax.jit(run, keep_unused=True).lower(arrays).compile(compiler_options=QUICKLY)
        actual = program(arrays)
    actual = _map_arrays(actual)
    if sample.compare is not None:
        sample.compare(actual, expected)
        return
    torch.testing.assert_close(
        _flat(actual), _flat(expected), rtol=sample.rtol, atol=sample.atol, equal_nan=True
    )


class _Hole:
    def __init__(self, index: int) -> None:
        self.index = index


def _hole(tensors: list[torch.Tensor], t: torch.Tensor) -> _Hole:
    tensors.append(t)
    return _Hole(len(tensors) - 1)


def _map(x: Any, f: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(x, torch.Tensor):
        return f(x)
    if isinstance(x, (list, tuple)):
        return type(x)(_map(i, f) for i in x)
    if isinstance(x, dict):
        return {k: _map(v, f) for k, v in x.items()}
    return x


def _fill(x: Any, arrays: list[jax.Array]) -> Any:
    if isinstance(x, _Hole):
        return arrays[x.index]
    if isinstance(x, (list, tuple)):
        return type(x)(_fill(i, arrays) for i in x)
    if isinstance(x, dict):
        return {k: _fill(v, arrays) for k, v in x.items()}
    return x


def to_numpy(t: torch.Tensor) -> np.ndarray:
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    if t.dtype in dtypes.CARRIED_AS:
        return t.view(dtypes.CARRIED_AS[t.dtype]).numpy().view(dtypes.to_jax(t.dtype))
    return t.numpy()


def _to_torch(a: jax.Array) -> torch.Tensor:
    host = np.array(a)
    dtype = dtypes.to_torch(a.dtype)
    if dtype in dtypes.CARRIED_AS:
        carrier = dtypes.to_jax(dtypes.CARRIED_AS[dtype])
        return torch.from_numpy(host.reshape(-1).view(carrier)).view(dtype).reshape(host.shape)
    return torch.from_numpy(host)


def _map_arrays(x: Any) -> Any:
    if x is None:
        return None
    return tuple(_map_arrays(i) for i in x) if isinstance(x, (list, tuple)) else _to_torch(x)


def _flat(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x.resolve_conj().resolve_neg()]
    return [] if x is None else [t for i in x for t in _flat(i)]


def _brief(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}"
    if isinstance(a, (list, tuple)):
        return [_brief(i) for i in a]
    return a
