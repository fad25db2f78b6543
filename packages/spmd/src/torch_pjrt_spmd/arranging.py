"""Inputs and outputs of modules, arranged as PyTorch's plans say: hooks that annotate activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_pjrt_spmd.marking import annotated
from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.spec import ShardingError, checked
from torch_pjrt_spmd.sub_mesh import SubMesh


class Step(NamedTuple):
    """One annotation: the dim that is spread over the axis, or None for copies along it.

    gradient  whether the gradient is to lie so, too.
    """

    dim: int | None
    gradient: bool


@dataclass(frozen=True)
class Arranged:
    """A function of a tensor: the same values, lying as its steps say one after another.

    mesh  of one axis.
    what  is arranged, for errors.
    """

    mesh: Mesh | SubMesh
    steps: tuple[Step, ...]
    what: str

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{self.what} has a layout and so is a tensor, saw {type(x).__name__}")
        if not torch.compiler.is_compiling() and x.device.type != "pjrt":
            return x  # the module has been moved off the device
        for dim, gradient in self.steps:
            x = annotated(x, self.mesh, self._entries(x, dim), gradient)
        return x

    def _entries(self, x: torch.Tensor, dim: int | None) -> Any:
        n_dims = x.dim()
        if dim is None:
            return (None,) * n_dims
        at = dim + n_dims * (dim < 0)
        if not 0 <= at < n_dims:
            raise ShardingError(
                f"There is no dim {dim} to spread.", saw=f"{self.what}: {list(x.shape)}"
            )
        spec = tuple(self.mesh.axis_names[0] if i == at else None for i in range(n_dims))
        try:
            return checked(x.shape, self.mesh, spec)
        except ShardingError as error:
            raise ShardingError(
                error.happened, saw=f"{self.what}: {error.saw}", expected=error.expected
            ) from None


def steps(given: Any, wanted: Any) -> tuple[Step, ...]:
    """The annotations that PyTorch's placements, or None, of a value and then after a redistribution mean.

    Nothing is said where a placement is `Partial`: XLA knows that a sum is not made yet, and makes it.
    The gradient lies as the value is given, not as it is wanted: a gathered value's is scattered at once.
    """
    if wanted is None or given == wanted:
        return tuple(Step(_dim(p), True) for p in (given,) if _is_said(p))
    first = (Step(_dim(given), True),) if _is_said(given) else ()
    return (*first, *([Step(_dim(wanted), not first)] if _is_said(wanted) else ()))


@dataclass(frozen=True)
class FirstInput:
    """A forward pre-hook that arranges the first positional input."""

    arranged: Arranged

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.arranged(inputs[0]), *inputs[1:]) if inputs else inputs


@dataclass(frozen=True)
class Output:
    """A forward hook that arranges the one output."""

    arranged: Arranged

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return self.arranged(output)


@dataclass(frozen=True)
class EachInput:
    """A forward pre-hook with keyword arguments that arranges those inputs that have a layout.

    by_position  None: positional inputs are not looked at.
    """

    what: str
    by_position: tuple[Arranged | None, ...] | None
    by_name: dict[str, Arranged]

    def __call__(self, module: nn.Module, inputs: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        if self.by_position is not None:
            inputs = _each(inputs, self.by_position, f"inputs of {self.what}")
        by_name = self.by_name
        return inputs, {n: by_name[n](x) if n in by_name else x for n, x in named.items()}


@dataclass(frozen=True)
class EachOutput:
    """A forward hook that arranges those outputs that have a layout; the one, if it is no tuple."""

    what: str
    by_position: tuple[Arranged | None, ...]

    def __call__(self, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        found = _each(several, self.by_position, f"outputs of {self.what}")
        return found[0] if len(found) == 1 else found


def _each(values: Any, by_position: tuple[Arranged | None, ...], what: str) -> tuple[Any, ...]:
    if len(values) != len(by_position):
        raise ShardingError(
            f"There is one layout for each of the {what}, None for one that has none.",
            saw=f"{len(values)} values, {len(by_position)} layouts",
        )
    pairs = zip(values, by_position, strict=True)
    return tuple(x if arranged is None else arranged(x) for x, arranged in pairs)


def _is_said(placement: Any) -> bool:
    return placement is not None and not placement.is_partial()


def _dim(placement: Any) -> int | None:
    return None if placement.is_replicate() else placement.dim
