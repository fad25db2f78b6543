"""A training step, or any other function, as a graph whose inputs and activations have names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from torch_pjrt.extend import (
    RecordedStep,
    buffer_of,
    graph_of,
    is_pjrt,
    number_on,
    recorded,
    state,
    value_of,
)
from torch_pjrt.plugin import Graph, Stage, client, run_passes
from torch_pjrt_spmd.autoshard.again import not_computed_again
from torch_pjrt_spmd.roles import OTHER, PARAMETER, STATE
from torch_pjrt_spmd.spec import Entry

INPUT, BUFFER = "input", "buffer"


@dataclass(frozen=True, slots=True)
class Input:
    """What the graph takes: its name for the user, what it is, and of optimizer state whose.

    position  of an argument, among the tensors of the arguments.
    lies      of what is none of the others: how it lies already, which no plan can change.
    """

    name: str
    role: str
    of: str | None = None
    position: int | None = None
    lies: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A function as a graph.

    inputs    of each input of the graph.
    updated   inputs that get new content, and the values that these are.
    results   the other values that it leaves: what it returns, gradients that stay.
    gradients of parameters when an optimizer takes its step, by the parameter's name, and of those that stay.
    activations   the results of modules, by the path of the module, with how often it had run before.
    takes         the first argument of these, by the same names.
    parameters, states   the tensors by their names; loose: parameters of optimizers that are in no module.
    optimizers    those that took a step.
    roots         the outermost modules that have tensors, by what the names of these begin with: nothing if
              there is one, else "0.", "1.", in the order of their first calls.
    """

    graph: Graph
    inputs: tuple[Input, ...]
    updated: Mapping[int, int]
    results: tuple[int, ...]
    gradients: Mapping[str, int]
    activations: Mapping[str, int]
    takes: Mapping[str, int]
    parameters: Mapping[str, torch.Tensor]
    states: Mapping[str, torch.Tensor]
    optimizers: tuple[torch.optim.Optimizer, ...]
    roots: Mapping[str, torch.nn.Module]
    loose: Mapping[str, torch.Tensor]


@dataclass(slots=True)
class _Seen:
    """What ran: optimizers, outermost modules, and the results of modules on the tape."""

    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    roots: list[torch.nn.Module] = field(default_factory=list)
    depth: int = 0
    given: list[int | None] = field(default_factory=list)
    results: list[tuple[torch.nn.Module, int, int | None]] = field(default_factory=list)
    gradients: dict[int, int] = field(default_factory=dict)  # of tensors by identity


def record(
    fn: Callable[..., Any], args: Sequence[Any], of: torch.nn.Module | None = None
) -> Recorded:
    """The function on these arguments. Nothing is computed; tensors may be on `meta`.

    of   the one module whose tensors have names, whatever others run; all that run, unless given.

    Raises `LoweringError` where it needs the value of a tensor.
    """
    seen = _Seen()

    def observed(*arguments: Any) -> Any:
        seen.roots.clear()
        seen.results.clear()
        seen.gradients.clear()
        with _watching(seen), not_computed_again():
            return fn(*arguments)

    with recorded(observed, args) as step:
        roots = _fronts(seen.roots) if of is None else {"": of}
        return _named(step, seen, roots, args)


def _fronts(modules: Sequence[torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Those that have tensors and are not within another one; a loss has none, and so does not count."""
    inner = {id(part) for m in modules for part in m.modules() if part is not m}
    own = [m for m in modules if id(m) not in inner]
    with_tensors = [m for m in own if any(True for _ in (*m.parameters(), *m.buffers()))]
    found = with_tensors or own[:1]
    return {f"{k}." if len(found) > 1 else "": m for k, m in enumerate(found)}


@contextmanager
def _watching(seen: _Seen) -> Iterator[None]:
    def enter(module: torch.nn.Module, args: object) -> None:
        if not seen.depth and all(m is not module for m in seen.roots):
            seen.roots.append(module)
        seen.depth += 1
        seen.given.append(_number(args[0]) if isinstance(args, tuple) and args else None)

    def leave(module: torch.nn.Module, args: object, result: Any) -> None:
        seen.depth -= 1
        given, made = seen.given.pop(), _number(result)
        if made is not None:
            seen.results.append((module, made, given))

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if all(o is not optimizer for o in seen.optimizers):
            seen.optimizers.append(optimizer)
        for parameter in [p for group in optimizer.param_groups for p in group["params"]]:
            made = _number(parameter.grad)
            if made is not None:
                seen.gradients[id(parameter)] = made

    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
        register_optimizer_step_pre_hook(note),
    ]
    try:
        yield
    finally:
        seen.depth = 0
        seen.given.clear()
        for handle in handles:
            handle.remove()


def _number(x: Any) -> int | None:
    """Of a tensor of the device on this thread's tape."""
    if isinstance(x, torch.Tensor) and is_pjrt(x) and x.is_floating_point():
        return number_on(state.tape, value_of(x.detach()))
    return None


def _named(
    step: RecordedStep,
    seen: _Seen,
    roots: Mapping[str, torch.nn.Module],
    args: Sequence[Any],
) -> Recorded:
    tape = step.tape
    real = list(step.outputs)
    # Before the graph is taken: reading a view may append to the tape.
    tracked = [made for _, made, _ in seen.results]
    tracked += [made if given is None else given for _, made, given in seen.results]
    tracked += seen.gradients.values()
    graph = graph_of(tape, [*real, *tracked])
    graph = run_passes([p for p in client().passes if p.stage < Stage.ROLL], graph)
    outputs = graph.outputs[: len(real)]
    positions = {id(value): i for i, value in enumerate(tape.inputs)}
    inputs = [
        Input(f"input {i}", OTHER, lies=_entries(step.pinned.get(id(value))))
        for i, value in enumerate(tape.inputs)
    ]
    arguments = [x for x in tree_leaves(list(args)) if isinstance(x, torch.Tensor)]
    free = list(range(len(arguments)))
    for (
        i,
        tensor,
    ) in step.stood_for.items():  # in the order of the arguments, without those not read
        if i in step.given:
            at = next(k for k in free if arguments[k] is tensor)
            free = [k for k in free if k > at]
            inputs[i] = Input(f"argument {at}", INPUT, None, at)
    parameters, states = {}, {}
    loose = dict(_loose(seen, roots))
    for name, tensor, role, of in _tensors_of(seen, roots, loose):
        (states if role == STATE else parameters)[name] = tensor
        i = _input_of(tensor, positions)
        if i is not None:
            inputs[i] = Input(name, role, of)
    kept: dict[str, int] = {}
    for name, tensor in parameters.items():
        gradient = tensor.grad
        if gradient is not None and is_pjrt(gradient):
            number = number_on(tape, value_of(gradient))
            if number in real:
                kept[name] = outputs[real.index(number)]
    by_identity = dict(
        zip(seen.gradients, graph.outputs[len(real) + 2 * len(seen.results) :], strict=True)
    )
    kept |= {name: by_identity[id(t)] for name, t in parameters.items() if id(t) in by_identity}
    updated = {
        -origin - 1: outputs[k] for k, origin in enumerate(step.reusable) if k < len(outputs)
    }
    names = _paths(roots)
    activations: dict[str, int] = {}
    takes: dict[str, int] = {}
    times: Counter[str] = Counter()
    n = len(seen.results)
    first = len(real)
    pairs = zip(
        graph.outputs[first : first + n], graph.outputs[first + n : first + 2 * n], strict=True
    )
    for (module, _, given), (number, of_given) in zip(seen.results, pairs, strict=True):
        name = names.get(id(module))
        if name is not None and number >= 0:
            named = f"{name}#{times[name]}" if times[name] else name
            times[name] += 1
            activations[named] = number
            if given is not None:
                takes[named] = of_given
    return Recorded(
        Graph(graph.inputs, graph.nodes, tuple(outputs)),
        tuple(inputs),
        updated,
        tuple(n for n in outputs if n not in set(updated.values())),
        kept,
        activations,
        takes,
        parameters,
        states,
        tuple(seen.optimizers),
        roots,
        loose,
    )


def _entries(how: Any) -> tuple[Entry, ...]:
    """The spec of a sharding that was pinned; empty where there is none."""
    return () if how is None else tuple(getattr(how, "spec", ()))


def _paths(roots: Mapping[str, torch.nn.Module]) -> dict[int, str]:
    found: dict[int, str] = {}
    for front, root in roots.items():
        for name, module in root.named_modules():
            path = (front + name).rstrip(".")
            found.setdefault(id(module), path or type(root).__name__)
    return found


def _loose(seen: _Seen, roots: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters that an optimizer steps and no module has, each once, with a name by its place."""
    known = {id(p) for root in roots.values() for p in root.parameters()}
    steps = (p for o in seen.optimizers for group in o.param_groups for p in group["params"])
    free = {id(p): p for p in steps if id(p) not in known}
    for k, parameter in enumerate(free.values()):
        yield f"parameter {k}", parameter


def _tensors_of(
    seen: _Seen, roots: Mapping[str, torch.nn.Module], loose: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor, str, str | None]]:
    """Each parameter, buffer and tensor of state: its name, itself, its role, whose state it is."""
    names: dict[int, str] = {}
    for front, root in roots.items():
        for name, tensor in root.named_parameters():
            if id(tensor) not in names:  # modules may share it
                names[id(tensor)] = front + name
                yield front + name, tensor, PARAMETER, None
        for name, tensor in root.named_buffers():
            yield front + name, tensor, BUFFER, None
    for name, tensor in loose.items():
        names[id(tensor)] = name
        yield name, tensor, PARAMETER, None
    for optimizer in seen.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                for key, tensor in optimizer.state.get(parameter, {}).items():
                    if isinstance(tensor, torch.Tensor):
                        yield f"{name}/{key}", tensor, STATE, name


def _input_of(tensor: torch.Tensor, positions: Mapping[int, int]) -> int | None:
    """Which input of the tape a tensor was before the step."""
    if not is_pjrt(tensor):
        return None
    value = buffer_of(tensor).value
    if value is None:
        return None
    if value.origin is not None:
        return -value.origin - 1
    return positions.get(id(value))
