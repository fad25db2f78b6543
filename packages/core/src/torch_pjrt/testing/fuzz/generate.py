"""Making programs: statements drawn one by one, tried on the CPU as they are drawn."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

import torch
from torch.utils._pytree import tree_leaves

from torch_pjrt.testing.fuzz.arguments import Draw, Unfit, new_input
from torch_pjrt.testing.fuzz.calls import PURE, WRITES, Call
from torch_pjrt.testing.fuzz.program import Program, Ref, Statement

_LARGEST = 4096  # elements of a result that later statements may use
_TRIES = 40


def inputs_for(rng: random.Random, wants_grad: bool) -> list[torch.Tensor]:
    """Three to five inputs, floating ones first and most of them."""
    kinds = [
        "float",
        "float",
        *rng.choices(["float", "int", "bool"], [5, 2, 1], k=rng.randint(1, 3)),
    ]
    inputs = [new_input(rng, kind) for kind in kinds]
    if wants_grad:
        inputs = [x.requires_grad_(x.is_floating_point()) for x in inputs]
    return inputs


def program(
    rng: random.Random, kind: str, length: int, *, writes: float, errors: float, grad: bool
) -> Program:
    """A program of so many statements.

    `writes` is the share of statements that write; `errors` how often a statement that raises on the CPU
    stays: it must raise the same on the device, and the program goes on without it.
    """
    made = Program(kind, inputs_for(rng, grad))
    env: list[object] = list(made.placed("cpu"))
    n_inputs = len(env)
    for _ in range(_TRIES * length):
        if len(made.statements) >= length:
            break
        table = WRITES if rng.random() < writes else PURE
        statement = _statement(rng, env, rng.choice(table))
        if statement is None:
            continue
        if table is WRITES and depends_on_order(statement, env):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = statement.run(env)
        except Exception:
            if rng.random() < errors and table is PURE:
                made.statements.append(statement)
                env.append(None)
            elif table is WRITES:  # it may have written in part
                env[:] = _again(made, n_inputs)
            continue
        if not _is_usable(result):
            if table is WRITES:
                env[:] = _again(made, n_inputs)
            continue
        made.statements.append(statement)
        env.append(result)
        if isinstance(result, (tuple, list)):  # what follows uses the parts one by one
            whole = Ref(len(env) - 1)
            for i, value in enumerate(result[:3]):
                made.statements.append(Statement("part", part, (whole, i)))
                env.append(value)
    return made


def part(values: Sequence[torch.Tensor], i: int) -> torch.Tensor:
    """One of the results of a call that gives several."""
    return values[i]


def _again(made: Program, n_inputs: int) -> list[object]:
    env: list[object] = list(made.placed("cpu"))
    for statement in made.statements:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                env.append(statement.run(env))
        except Exception:
            env.append(None)
    assert len(env) == n_inputs + len(made.statements)
    return env


def depends_on_order(statement: Statement, env: Sequence[object]) -> bool:
    """Whether elements that it writes share memory, with each other or with another argument's.

    PyTorch leaves open what is computed then, where it does not refuse the call.
    """
    given = [env[x.number] for x in tree_leaves(statement.args) if isinstance(x, Ref)]
    target, *others = [x.detach() for x in given if isinstance(x, torch.Tensor)]
    written = _offsets(target)
    if len(written.unique()) < len(written):
        return True
    return any(
        x.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
        and bool(torch.isin(_offsets(x), written).any())
        and not (len(written) == x.numel() and torch.equal(_offsets(x), written))
        for x in others
    )


def _offsets(x: torch.Tensor) -> torch.Tensor:
    """Where in its storage each element lies, in order."""
    n = x.untyped_storage().nbytes() // x.element_size()
    return torch.arange(n).as_strided(x.shape, x.stride(), x.storage_offset()).flatten()


def _statement(rng: random.Random, env: list[object], call: Call) -> Statement | None:
    draw = Draw(rng, env)
    try:
        for argument in call.args:
            draw.args.append(argument(draw))
        kwargs = {k: arg(draw) for k, arg in call.kwargs.items() if rng.random() < 0.5}
    except (Unfit, IndexError):
        return None
    return Statement(call.name, call.function, tuple(draw.args), kwargs)


def _is_usable(result: object) -> bool:
    leaves = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    return bool(leaves) and all(x.numel() <= _LARGEST and _is_tame(x.detach()) for x in leaves)


def _is_tame(x: torch.Tensor) -> bool:
    """Not so large that one rounding shows everywhere after it."""
    if not (x.is_floating_point() or x.is_complex()) or not x.numel():
        return True
    finite = x[torch.isfinite(x.abs())]
    return finite.numel() == 0 or bool(finite.abs().max() < 1e6)
