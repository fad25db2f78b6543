"""Products over flattened dims, written as products over the dims themselves.

PyTorch's linear layer makes one dim of batch and sequence. What is spread along the sequence cannot be spread
so in that dim, where the sequence is not the outermost part: XLA gathers it, and chips do the same work.

before  x = reshape(a)        (8, 16, 32) -> (128, 32)      after  y = dot(a, w)   (8, 16, 32), (32, 64)
        y = dot(x, w)         (128, 32), (32, 64)                  z = y + b
        z = reshape(y + b)    (128, 64) -> (8, 16, 64)

        g = dot(x, d)         over the dim of 128                  g = dot(a, e)   over the dims 8 and 16
        for x, d = reshape(a), reshape(e)

Three walks through the program. Forward: where each dim of a value can be cut, since it was made of several
(`cuts`). Backward: which of these cuts are wanted, because a reshape cuts there or a sum runs over the dim.
Forward: operators with wanted cuts are built anew. What others read in the old shape is reshaped for them.
Each new value is a reshape of the old one, so numbers stay, but for the order in sums. What one operator does
in each of the walks: `unflattened_steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.mlir import ir

from torch_pjrt.plugin import each_operation
from torch_pjrt_spmd.cuts import NOWHERE, through_reshape
from torch_pjrt_spmd.inlining import inline
from torch_pjrt_spmd.op_dims import KINDS
from torch_pjrt_spmd.unflattened_steps import (
    LOOP,
    RESHAPE,
    Known,
    Loop,
    LoopEnd,
    Reshape,
    Row,
    Step,
    shape_of,
)

Operation = Any
Value = Any

_SHARDINGS = ("sdy.sharding", "mhlo.sharding")


def unflatten(module: Any, n_chips: int) -> None:
    """Change a program for so many chips; one that flattens nothing stays as it is."""
    flattened = {n for op in each_operation(module.operation) for n in _flattened(op)}
    if not flattened:
        return
    inline(module, lambda call: any(flattened & set(shape_of(x)) for x in _around(call)))
    steps = _steps(_followed(module.operation), n_chips)
    known = Known()
    _settle(known.has, lambda: [step.look(known) for step in steps])
    _settle(known.wanted, lambda: [step.ask(known) for step in reversed(steps)])
    changed = [step for step in steps if step.is_changed]
    for step in changed:
        step.build(known)
    for step in reversed(changed):
        step.drop(known)


def _flattened(op: Operation) -> Iterator[int]:
    """The dims that it makes of several."""
    if op.name == RESHAPE:
        taken, made = shape_of(op.operands[0]), shape_of(op.results[0])
        cuts = through_reshape(taken, [NOWHERE] * len(taken), made)
        yield from (n for n, of in zip(made, cuts, strict=True) if of)


def _around(call: Operation) -> list[Value]:
    return [x for x in (*call.operands, *call.results) if isinstance(x.type, ir.RankedTensorType)]


def _followed(root: Operation) -> Iterator[Operation]:
    """In order; not what is inside those that have a row, a sum's addition say."""
    for region in root.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                if inner.operation.name not in KINDS:
                    yield from _followed(inner.operation)


def _steps(operations: Iterator[Operation], n_chips: int) -> list[Step]:
    found: list[Step] = []
    ends: dict[Operation, LoopEnd] = {}
    for op in operations:
        if any(name in op.attributes for name in _SHARDINGS):
            continue
        if op.name == LOOP:
            loop = Loop(op)
            found.append(loop)
            ends[loop.end] = LoopEnd(loop)
        elif op in ends:
            found.append(ends[op])
        elif op.name == RESHAPE:
            found.append(Reshape(op))
        elif (kind := KINDS.get(op.name)) is not None and (dims := kind.dims(op)) is not None:
            found.append(Row(op, kind, dims, n_chips))
    return found


def _settle(found: dict[Any, Any], walk: Any) -> None:
    """Walk until a walk finds nothing new: what a loop begins with and what it ends with go together."""
    before = None
    while found != before:
        before = dict(found)
        walk()
