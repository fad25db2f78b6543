"""What a rule's results look like, where PyTorch has no meta function that would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import torch

from torch_pjrt import dtypes
from torch_pjrt.graph.signature import NumberSlot, Slot, filled
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.lowering.table import Lowering


class Asked(Protocol):
    """What a rule is asked with: a call that was bound to its operator, or a `Pattern`."""

    @property
    def specs(self) -> Sequence[TensorSpec]: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> dict[str, Any]: ...
    @property
    def numbers(self) -> Sequence[int | float]: ...


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a rule is asked with where there is no call: specs, and arguments with slots for tensors."""

    specs: Sequence[TensorSpec]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    numbers: Sequence[int | float] = ()


def results_of_rule(op: Any, lowering: Lowering, call: Asked) -> Any:
    """Meta tensors like the results of the rule of `op` on this call; None where the rule gives None."""
    shapes = [jax.ShapeDtypeStruct(tuple(f.shape), dtypes.to_jax(f.dtype)) for f in call.specs]

    def run(key: Any, *inputs: jax.Array) -> Any:
        def tensor(slot: Slot) -> jax.Array:
            return inputs[slot.index]

        def number(slot: NumberSlot) -> int | float:
            return call.numbers[slot.index]

        args = filled(call.args, tensor, number)
        kwargs = filled(call.kwargs, tensor, number)
        first = [key] if lowering.random else []
        return lowering.called(op, [*first, *args], kwargs)

    with dtypes.x64():
        key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
        results = jax.eval_shape(run, key, *shapes)
    if not isinstance(results, (list, tuple)):
        return _meta(results)
    return tuple(r if r is None or isinstance(r, int) else _meta(r) for r in results)


def _meta(result: jax.ShapeDtypeStruct) -> torch.Tensor:
    return torch.empty(result.shape, dtype=dtypes.to_torch(result.dtype), device="meta")
