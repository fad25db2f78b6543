"""What a function would compute, recorded without computing anything: its tensors need have no content.

The function runs on a nested tape, which never syncs, twice: the first run makes what a step makes once (an
optimizer's state, the content of `torch.empty`), so that the second one is a step in full swing. Then
buffers, optimizers and the values of the tape outside are as they were before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt.client import partition
from torch_pjrt.client.shardings import Sharding
from torch_pjrt.errors import LoweringError
from torch_pjrt.every_object import every
from torch_pjrt.graph.tape import BorrowingTape, Tape, Value, current, number_on, state
from torch_pjrt.graph.tensor_spec import contiguous_spec
from torch_pjrt.run.sync import live_values
from torch_pjrt.tensor.storage.buffer import Buffer, buffers, is_pjrt, wrap_sized
from torch_pjrt.tensor.storage.view import value_of


@dataclass(frozen=True, slots=True, eq=False)
class RecordedStep:
    """A function on a tape.

    tape      what it recorded.
    outputs   the numbers of its results, and of what it wrote in place.
    given     the inputs of the tape, by index, that are the function's arguments.
    stood_for of these, and of a module's parameters and buffers, the tensors that they stand for.
    pinned    where a package spreads arrays: how what tensors held before the run is to lie, by identity.
    reusable  as `run/sync.py` says: inputs whose memory a result may take.

        >>> with recorded(lambda x: x.sin(), [torch.empty(3)]) as step:
        ...     step.outputs, step.given  # one result, of the first input
        ((0,), frozenset({0}))
    """

    tape: Tape
    outputs: tuple[int, ...]
    given: frozenset[int]
    stood_for: Mapping[int, torch.Tensor]
    pinned: Mapping[int, Sharding]
    reusable: dict[int, int]


@contextmanager
def recorded(fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[RecordedStep]:
    """The function's second run on `args`, while the block lasts; all is as before when it ends.

    `args` are what the function takes; tensors of any device stand for `pjrt` tensors of their shape and
    dtype. A module is called with parameters that have no content. Raises `LoweringError` where the function
    needs a value.

        >>> with recorded(lambda x: x.sin() + 1, [torch.empty(3)]) as step:
        ...     [node.op.name() for node in graph_of(step.tape, step.outputs).nodes]
        ['aten::sin', 'aten::add.Tensor']
    """
    current()
    outer = state.tape
    buffers, gradients = _buffers(), _gradients()
    optimizers: dict[torch.optim.Optimizer, Any] = {}
    hook = register_optimizer_step_pre_hook(lambda o, *_: _remember(o, optimizers))
    tapes: list[BorrowingTape] = []
    pinned: Mapping[int, Sharding] = {}
    try:
        for run in (1, 2):
            tape = state.tape = BorrowingTape()
            tapes.append(tape)
            call, stand_ins, n_given = _call(fn, args)
            partitioner = partition.chosen.partitioner
            pinned = {} if partitioner is None else partitioner.pinned()
            try:
                results = call()
            except LoweringError as error:
                raise _needs_a_value(error) from error
            if run == 1:
                del results, call, stand_ins
                gc.collect()
        yield _recorded(tape, results, stand_ins, n_given, pinned)  # pyright: ignore[reportPossiblyUnboundVariable]
    finally:
        hook.remove()
        state.tape = outer
        for buffer, held in buffers:
            buffer.hold_again(held)
        for tensor, gradient in gradients:
            tensor.grad = gradient
        for optimizer, states in optimizers.items():
            _restore(optimizer, *states)
        for tape in reversed(tapes):
            tape.give_back()
            tape.failure = "compile_for() computes nothing"


class StandIn(NamedTuple):
    """A tensor without content in the place of another one, and its value."""

    value: Value
    tensor: torch.Tensor
    of: torch.Tensor


def _call(
    fn: Callable[..., Any], args: Sequence[Any]
) -> tuple[Callable[[], Any], list[StandIn], int]:
    """The function with stand-ins for its arguments; all of them, and how many are arguments: the first ones.

    The others are a module's parameters and buffers.
    """
    stand_ins: list[StandIn] = []

    def empty(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        spec = contiguous_spec(x.shape, x.dtype)
        value = Value(spec, 0, None)
        tensor = wrap_sized(value, spec).requires_grad_(x.requires_grad)
        stand_ins.append(StandIn(value, tensor, x))
        return tensor

    positional = tree_map(empty, list(args))
    n_given = len(stand_ins)
    if not isinstance(fn, torch.nn.Module):
        return lambda: fn(*positional), stand_ins, n_given
    state_ = {**dict(fn.named_parameters()), **dict(fn.named_buffers())}
    held = {name: empty(t) for name, t in state_.items()}
    return lambda: torch.func.functional_call(fn, held, tuple(positional)), stand_ins, n_given


def _recorded(
    tape: BorrowingTape,
    results: Any,
    stand_ins: Sequence[StandIn],
    n_given: int,
    pinned: Mapping[int, Sharding],
) -> RecordedStep:
    wanted = [number_on(tape, value_of(t)) for t in tree_leaves(results) if is_pjrt(t)]
    live = live_values(tape.values)
    inputs = {id(value): i for i, value in enumerate(tape.inputs)}
    aliased: dict[int, int] = {}
    for number in live:
        origin = tape.values[number].origin
        if origin is not None:
            aliased.setdefault(origin, number)
    rest = sorted({*wanted, *live} - set(aliased.values()))
    reusable = dict(sorted(aliased.items(), reverse=True))
    taken = [(inputs[id(s.value)], s) for s in stand_ins if id(s.value) in inputs]
    arguments = {id(s.value) for s in stand_ins[:n_given]}
    return RecordedStep(
        tape,
        (*reusable.values(), *rest),
        frozenset(i for i, s in taken if id(s.value) in arguments),
        {i: s.of for i, s in taken},
        pinned,
        reusable,
    )


def _buffers() -> list[tuple[Buffer, tuple[Any, ...]]]:
    """Each buffer of this process and what it holds."""
    return [(o, o.held()) for o in buffers.all()]


def _gradients() -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Each tensor of the device that gradients are kept of, and its own."""
    tensors = [o for o in every(torch.Tensor) if is_pjrt(o)]
    return [(t, t.grad) for t in tensors if t.is_leaf and t.requires_grad]


def _remember(optimizer: torch.optim.Optimizer, known: dict[Any, Any]) -> None:
    """Before an optimizer's first step: its state and settings, with copies of what it keeps on the host."""
    if optimizer in known:
        return

    def copied(x: Any) -> Any:
        return (x, x.clone()) if isinstance(x, torch.Tensor) and not is_pjrt(x) else (x, None)

    states = {p: {k: copied(v) for k, v in s.items()} for p, s in optimizer.state.items()}
    groups = [
        {k: copied(v) for k, v in group.items() if k != "params"}
        for group in optimizer.param_groups
    ]
    known[optimizer] = states, groups


def _restore(optimizer: torch.optim.Optimizer, states: Any, groups: Any) -> None:
    def put_back(into: Any, entries: Any) -> None:
        for name, (x, copy) in entries.items():
            if copy is not None:
                x.copy_(copy)
            into[name] = x

    optimizer.state.clear()
    for parameter, entries in states.items():
        put_back(optimizer.state[parameter], entries)
    for group, entries in zip(optimizer.param_groups, groups, strict=True):
        put_back(group, entries)


def _needs_a_value(error: LoweringError) -> LoweringError:
    return LoweringError(
        "compile_for(): the function cannot be compiled ahead of time, since it needs the value of a tensor.",
        saw=error.saw,
        hint="take what reads values (`item()`, `print`, `x[mask]`, an operator without a rule) out of it",
    )
