"""What differs between two runs of a program, if it is no rounding that a jump made visible.

Where a result differs, the CPU runs programs whose inputs and values are some roundings away: what differs
between those, too, is left out.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_pjrt.testing.conformance.compare import difference
from torch_pjrt.testing.fuzz.kinds import KINDS
from torch_pjrt.testing.fuzz.program import Observed, Program, Raised, Statement

_TOLERANCES = {
    torch.float64: (1e-6, 1e-8),
    torch.float32: (1e-3, 1e-4),
    torch.bfloat16: (5e-2, 5e-2),
}
_SHAKEN = 4  # runs with values that are some roundings away: each second one the other way
_LACKING = "derivative for aten::"  # begins what PyTorch says of one that its CPU kernel lacks


def judge(made: Program, device: str) -> str | None:
    """Run a program on the CPU and on the device; the first difference in words, None if there is none."""
    run = KINDS[made.kind].run
    theirs, ours = run(made, "cpu"), run(made, device)
    found = {i: what for i, what in enumerate(_differences(ours, theirs)) if what is not None}
    for shake in range(_SHAKEN):
        if not found:
            return None
        shaken = _differences(run(_shaken(made, shake), "cpu"), theirs)
        unstable = {i for i, what in enumerate(shaken) if what is not None}
        found = {i: what for i, what in found.items() if i not in unstable}
    return next((f"result {i}: {what}" for i, what in found.items()), None)


def _differences(ours: Observed, theirs: Observed) -> list[str | None]:
    """By leaf, of the values but for those that the CPU has no derivative for."""
    lacking = {
        i
        for i, x in enumerate(theirs.values)
        if isinstance(x, Raised) and x.text.startswith(_LACKING)
    }
    a, b = (
        tree_leaves(
            [x for i, x in enumerate(o.values) if i not in lacking],
            is_leaf=lambda x: isinstance(x, Raised),
        )
        for o in (ours, theirs)
    )
    if len(a) != len(b):
        raised = next((str(x) for x in a if isinstance(x, Raised)), "nothing")
        theirs_raised = next((str(x) for x in b if isinstance(x, Raised)), "nothing")
        return [f"{len(a)} results, not {len(b)}; raised {raised}, not {theirs_raised}"]
    return [_leaf(x, y) for x, y in zip(a, b, strict=True)]


def _leaf(x: Any, y: Any) -> str | None:
    if isinstance(x, Raised) or isinstance(y, Raised):
        kinds = [z.kind if isinstance(z, Raised) else "a value" for z in (x, y)]
        return (
            None
            if kinds[0] == kinds[1]
            else f"{x if isinstance(x, Raised) else 'a value'}, not {y}"
        )
    if isinstance(y, torch.Tensor):
        if not isinstance(x, torch.Tensor):
            return f"gave {type(x).__name__}, not a tensor"
        if x.requires_grad != y.requires_grad:
            return f"requires_grad {x.requires_grad}, not {y.requires_grad}"
        try:
            return difference(x, y, None, _TOLERANCES.get(y.dtype))
        except Exception as error:  # reading raises: a value that was lost
            return f"reading it raised {Raised.of(error)}"
    return difference(x, y)


def _shaken(made: Program, seed: int) -> Program:
    """The program with inputs and results that are a few roundings of their dtype away.

    Subnormal ones are 0, as to XLA's code for the CPU.
    """

    def shake(x: torch.Tensor) -> torch.Tensor:
        noise = torch.arange(x.numel(), dtype=torch.float64).add(seed // 2 + 1).mul(12.9898).sin()
        noise = -noise if seed % 2 else noise
        scale = 1 + 8 * torch.finfo(x.dtype).eps * noise.reshape(x.shape)
        return torch.where(x.abs() < torch.finfo(x.dtype).tiny, 0, x * scale.to(x.dtype))

    def shaken(statement: Statement) -> Statement:
        def function(*args: Any, **kwargs: Any) -> Any:
            result = statement.function(*args, **kwargs)
            if not isinstance(result, torch.Tensor) or not result.is_floating_point():
                return result
            # What is written to later must be seen through its views, and strides stay as they are.
            is_new = not result._is_view() and not any(result is x for x in args)
            moved = shake(result) if is_new else result
            return moved if moved.stride() == result.stride() else result

        return Statement(statement.name, function, statement.args, statement.kwargs)

    inputs = [
        shake(x.detach()).requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for x in made.inputs
    ]
    return Program(made.kind, inputs, [shaken(s) for s in made.statements])


def shrunk(made: Program, device: str) -> Program:
    """The shortest beginning of the program that differs as well."""
    for n in range(1, len(made.statements)):
        shorter = Program(made.kind, made.inputs, made.statements[:n])
        if judge(shorter, device) is not None:
            return shorter
    return made


def drawn(kind: str, seed: int) -> Program:
    """The program of a kind and a seed."""
    return KINDS[kind].make(random.Random(f"{kind} {seed}"))
