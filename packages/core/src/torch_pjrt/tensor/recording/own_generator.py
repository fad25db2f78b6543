"""Running an operator on the CPU for its error only, without drawing from the CPU's generator.

That generator belongs to the whole process: while an operator is tried, a thread that loads data may seed it
and draw from it. To save its state and put it back would take that thread's numbers back, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_pjrt.overloads import aten

_GENERATOR = "generator"
# Overloads that take no generator, and those that take one and are the same otherwise.
WITH_GENERATOR = {
    aten.rand.default: aten.rand.generator,
    aten.randn.default: aten.randn.generator,
    aten.randint.default: aten.randint.generator,
    aten.randint.low: aten.randint.low_generator,
    aten.randperm.default: aten.randperm.generator,
}


def try_on_cpu(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Call the operator with tensors of the CPU, and raise what it raises.

    Where it draws random numbers and is given no generator, it draws from a new one.
    """
    if op is aten.native_dropout.default:
        _native_dropout(*args, **kwargs)
        return
    op = WITH_GENERATOR.get(op, op)
    names = [argument.name for argument in op._schema.arguments]
    if _GENERATOR not in names:
        op(*args, **kwargs)
        return
    # By position: most are keyword-only, but not all.
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get(_GENERATOR) is None:
        given[_GENERATOR] = torch.Generator("cpu")
    op(**given)


def _native_dropout(input: torch.Tensor, p: float, train: bool | None) -> None:
    """It takes no generator: what it does on the CPU, with one."""
    aten.native_dropout.default(input, p, False)
    if (train or train is None) and input.numel():
        mask = torch.empty(input.shape, dtype=torch.bool, device="cpu")
        aten.bernoulli_.float(mask, 1.0 - p, generator=torch.Generator("cpu"))
