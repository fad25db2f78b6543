"""One call of a step, observed: what it launched, where the inputs came from and the results went.

Inputs and results are traced to *buffers*, which stand for the memory of tensors: parameters, optimizer
state, arguments. The call itself runs as always.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_pjrt.device import guard
from torch_pjrt.errors import TorchPjrtError
from torch_pjrt.graph.tape import Tape, Uploaded, Value
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.interrupts.signals import handled
from torch_pjrt.observe.counters import of_thread
from torch_pjrt.replays.array_slots import begin, rebinding, rebindings
from torch_pjrt.replays.gradients import Gradients
from torch_pjrt.replays.group_numbers import Following, Formulas
from torch_pjrt.replays.traffic import Content, Traffic, host_random_numbers
from torch_pjrt.run import deferred_checks
from torch_pjrt.run import sync as syncing
from torch_pjrt.tensor.storage.buffer import Buffer, buffer_of, buffers, is_pjrt, spec_and_offset

if TYPE_CHECKING:
    from torch_pjrt.compile.programs import Program


# Positions and labels have one: each of their ranges would have a recording.
_FEWEST_DIMS_OF_MASK = 2


@dataclass(frozen=True, slots=True)
class Argument:
    """The buffer of the tensor at this position among the call's tensors."""

    position: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A buffer that lives outside of the step."""

    buffer: weakref.ref[Buffer]


@dataclass(frozen=True, slots=True)
class Result:
    """What an earlier launch of the same call gave.

    number     of the value on the tape.
    position   among what the program gave. Programs that take other inputs' memory give in another order.
    """

    launch: int
    number: int
    position: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the call made from the host."""

    spec: TensorSpec
    content: Content


@dataclass(frozen=True, slots=True)
class New:
    """A value that came into being during the call, from anywhere else."""

    spec: TensorSpec


Source = Argument | Kept | Result | Constant | New


@dataclass(slots=True)
class Launch:
    """One program that the call launched.

    sources  where each of its inputs came from.
    code     the tape, with its numbers: what the call recorded.
    formulas  by their position, of floats that were computed from numbers in optimizers' groups.
    n_draws  how many random operators drew since the last seeding; `n_seedings`, how often it was (re)seeded.
    """

    program: Program
    sources: list[Source]
    code: tuple[int, ...]
    ints: list[int]
    floats: list[float]
    n_seedings: int
    n_draws: int
    formulas: Formulas


@dataclass(frozen=True, slots=True)
class Read:
    """A value that the call read, after so many launches."""

    n_launches: int
    source: Source
    content: Content


class Outside:
    """A tensor that lives outside of the step. Equal by identity: `==` of two tensors gives a third."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = weakref.ref(tensor)

    def __eq__(self, other: object) -> bool:
        mine = self.tensor()
        return mine is not None and isinstance(other, Outside) and other.tensor() is mine

    def __hash__(self) -> int:
        return hash(self.tensor)


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that the call made: of an argument, or of a tensor that lives outside.

    base, look   the spec of its memory, and what it looks like itself, with its offset.
    replaces     it took the place of another, which the call did not look at.
    """

    target: Argument | Outside
    result: Result
    base: TensorSpec
    look: tuple[TensorSpec, int]
    replaces: bool


@dataclass(slots=True)
class Observed:
    """All that was seen of one call.

    following  the numbers in optimizers' groups that were followed.
    reads      the values that the call read, in order.
    writes     the buffers that were there before and hold a result now.
    gradients  those that the call made.
    fresh      the results that new buffers hold which are not returned: gradients that took the place of
               others, for example.
    checks     the results of deferred checks, and the errors.
    objections why the call cannot be replayed, in words.
    is_disturbed   meanwhile a handler of a signal has recorded, or another thread has run what was recorded:
               what was seen is not what the step does alone.
    """

    following: Following
    launches: list[Launch] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    writes: dict[Result, list[Source]] = field(default_factory=dict)
    gradients: list[Gradient] = field(default_factory=list)
    fresh: dict[Result, list[weakref.ref[Buffer]]] = field(default_factory=dict)
    checks: dict[Result, list[deferred_checks.Refusal]] = field(default_factory=dict)
    objections: list[str] = field(default_factory=list)
    is_disturbed: bool = False


def observed(
    call: Callable[[], Any],
    tensors: Sequence[torch.Tensor],
    gradients: Gradients,
    following: Following,
) -> tuple[Any, Observed, Callable[[torch.Tensor], Result | None]]:
    """Call it: what it returned, what was seen, and which result of a launch a returned tensor holds."""
    begin(map(buffer_of, tensors))
    seen, traffic, thread = Observed(following), Traffic(), threading.get_ident()
    n_handlers, rebound = handled.n_recorded, _rebindings_of_others()
    made: dict[int, tuple[weakref.ref[Value], Result]] = {}

    def result_of(value: Value | None) -> Result | None:
        found = made.get(id(value))
        return found[1] if found is not None and found[0]() is value else None

    def source_of(value: Value) -> Source:
        if (result := result_of(value)) is not None:
            return result
        for reference in before.get(id(value), ()):
            buffer = reference()
            if buffer is not None and id(buffer) in known and known[id(buffer)][1]() is value:
                position = positions.get(id(buffer))
                return Argument(position) if position is not None else Kept(reference)
        content = traffic.uploaded(value)
        return New(value.spec) if content is None else Constant(value.spec, content)

    def note_read(value: Value, content: Content) -> None:
        source = source_of(value)
        if not isinstance(source, Constant):
            seen.reads.append(Read(len(seen.launches), source, content))

    def note(tape: Tape, program: Program) -> None:
        if tape.thread != thread:
            return
        if threading.get_ident() != thread:  # it wants a value that is pending here
            seen.is_disturbed = True
        number = len(seen.launches)
        results = [(n, weakref.ref(tape.values[n])) for n in program.outputs]
        launch = Launch(
            program,
            [source_of(value) for value in tape.inputs],
            tuple(tape.code),
            list(tape.ints),
            list(tape.floats),
            len(tape.draws),
            tape.n_draws,
            following.of(tape),
        )
        seen.launches.append(launch)
        for position, (n, reference) in enumerate(results):
            value = reference()
            if value is not None:
                made[id(value)] = (reference, Result(number, n, position))
        for checks in deferred_checks.pending():  # soon somebody looks at them, and they are gone
            if (result := result_of(checks.value)) is not None:
                seen.checks[result] = list(checks.refusals)

    counted = (of_thread.replays, of_thread.fallbacks)
    drawn = host_random_numbers()
    n_backward = guard.runs()
    with traffic.noted(note_read):
        with quiet():
            positions, before = _prepared(tensors)
            known = _held(before)
        with _noting(note):
            returned = call()
            syncing.sync("a captured step ends")
    with quiet():
        _object_to_traffic(seen, counted)
        if host_random_numbers() != drawn and _depends_on_host(seen):
            seen.objections.append("it draws random numbers on the host: a replay would not")
        moved = [
            reference
            for reference, old in known.values()
            if (b := reference()) is not None and _is_moved(b, old(), result_of, traffic)
        ]
        if moved:
            seen.objections.append(
                f"it copies into {len(moved)} tensors what is in others, or comes from the host, as it is"
            )

        own = {id(buffer_of(t)) for t in _tensors(returned) if is_pjrt(t)}
        touched = {s.buffer for x in seen.launches for s in x.sources if isinstance(s, Kept)}
        for references in _buffers().values():
            for reference in references:
                buffer = reference()
                result = result_of(buffer.value) if buffer is not None else None
                if buffer is None or result is None:
                    continue
                if id(buffer) in known and known[id(buffer)][0]() is buffer:  # ids are used again
                    position = positions.get(id(buffer))
                    target = Argument(position) if position is not None else Kept(reference)
                    seen.writes.setdefault(result, []).append(target)
                elif id(buffer) not in own:
                    seen.fresh.setdefault(result, []).append(reference)
        touched |= {t.buffer for x in seen.writes.values() for t in x if isinstance(t, Kept)}
        _note_gradients(seen, gradients, tensors, touched, result_of)
        if guard.runs() == n_backward and any(
            t.requires_grad and t.grad_fn for t in _tensors(returned)
        ):
            seen.objections.append(
                "it returns a tensor that needs gradients, and its backward does not run inside: "
                "call backward() in the step, or return a tensor that is detached"
            )
        # At the end: until then what others bind anew may look like the step's doing.
        on_main = thread == threading.main_thread().ident
        is_rebound = _rebindings_of_others() != rebound or any(n % 2 for n in rebound.values())
        if is_rebound or (on_main and handled.n_recorded != n_handlers):
            seen.is_disturbed = True
    return returned, seen, lambda tensor: result_of(buffer_of(tensor).value)


def _note_gradients(
    seen: Observed,
    gradients: Gradients,
    tensors: Sequence[torch.Tensor],
    touched: set[weakref.ref[Buffer]],
    result_of: Callable[[Value | None], Result | None],
) -> None:
    """Note the gradients that the call made; `touched` are the buffers outside that it read or wrote to."""
    positions = {id(t): i for i, t in enumerate(tensors)}
    before = dict(zip(map(id, gradients.tensors), gradients.before, strict=True))
    given = [t for t in tensors if t.is_leaf and t.requires_grad]
    replaced, own = [], set()
    for tensor in {id(t): t for t in [*gradients.tensors, *given]}.values():
        gradient, had = tensor.grad, before.get(id(tensor))
        if gradient is None or had in touched:
            continue
        if gradient.layout is not torch.strided:
            seen.objections.append("it makes a sparse gradient")
            continue
        buffer = buffer_of(gradient)
        if had is not None and had() is buffer:
            continue
        result = result_of(buffer.value)
        look = spec_and_offset(gradient)
        if result is None or id(buffer) in own or look[0].dtype != buffer.spec.dtype:
            seen.objections.append("it makes a gradient that shares memory with another tensor")
            continue
        own.add(id(buffer))
        position = positions.get(id(tensor))
        target = Argument(position) if position is not None else Outside(tensor)
        seen.gradients.append(Gradient(target, result, buffer.spec, look, had is not None))
        if had is not None:
            replaced.append(tensor)
        else:
            _forget(seen, result, buffer)
    seen.objections += gradients.end(replaced, tensors)


def _forget(seen: Observed, result: Result, buffer: Buffer) -> None:
    """A replay makes this one anew: it does not write to what the call made."""
    kept = [r for r in seen.fresh.get(result, []) if r() is not buffer]
    if kept:
        seen.fresh[result] = kept
    else:
        seen.fresh.pop(result, None)


def at_their_gradients(seen: Observed) -> Observed | None:
    """The same call, as if it had made the gradients that are there now; None if they look different."""
    fresh = dict(seen.fresh)
    for gradient in seen.gradients:
        if gradient.replaces and not isinstance(gradient.target, Argument):
            tensor = gradient.target.tensor()
            if tensor is None or tensor.grad is None or tensor.grad.layout is not torch.strided:
                return None
            buffer = buffer_of(tensor.grad)
            if spec_and_offset(tensor.grad) != gradient.look or buffer.spec is not gradient.base:
                return None
            fresh[gradient.result] = [weakref.ref(buffer)]
    return replace(seen, fresh=fresh)


def _prepared(
    tensors: Sequence[torch.Tensor],
) -> tuple[dict[int, int], dict[int, list[weakref.ref[Buffer]]]]:
    """By the ids of their buffers, the positions of the arguments; and all buffers by their values' ids.

    Each buffer gets a value of its own.
    """
    positions: dict[int, int] = {}
    for position, tensor in enumerate(tensors):
        positions.setdefault(id(buffer_of(tensor)), position)
    let_arguments_be_any(tensors)
    before = _buffers()
    for references in list(before.values()):
        for reference in references[1:]:
            buffer = reference()
            if buffer is not None and (alone := _hold_alone(buffer)) is not None:
                before[id(alone)] = [reference]
        del references[1:]
    return positions, before


def let_arguments_be_any(tensors: Sequence[torch.Tensor]) -> None:
    """Forget the range of those that came from the host.

    Indices are checked by it at the call. The device has to check them, since a replay makes no calls. Masks
    keep their range: calls whose masks have another one have another recording.
    """
    for buffer in map(buffer_of, tensors):
        if isinstance(buffer.value, Uploaded) and range_of_mask(buffer) is None:
            _hold_alone(buffer)


def range_of_mask(buffer: Buffer) -> tuple[int, int] | None:
    """The range of integers in two or more dims that came from the host, where all are 0 or 1."""
    value = buffer.value if type(buffer) is Buffer else None
    if not isinstance(value, Uploaded) or len(value.spec.shape) < _FEWEST_DIMS_OF_MASK:
        return None
    return value.range if value.range[0] >= 0 and value.range[1] <= 1 else None


def _held(
    before: dict[int, list[weakref.ref[Buffer]]],
) -> dict[int, tuple[weakref.ref[Buffer], weakref.ref[Value]]]:
    """By the ids of buffers, which they are and what they hold: they change that during the call.

    A function of its own: names of a comprehension would hold the last value, which would not be donated.
    """
    found = {}
    for reference in [r for references in before.values() for r in references]:
        buffer = reference()
        value = buffer.value if buffer is not None else None
        if value is not None:
            found[id(buffer)] = (reference, weakref.ref(value))
    return found


def _rebindings_of_others() -> dict[int, int]:
    own = threading.get_ident()
    return {thread: n for thread, n in [*rebindings.items()] if thread != own}


def _hold_alone(buffer: Buffer) -> Value | None:
    """Have the buffer hold what it holds by a value of its own; that value."""
    while (value := buffer.value) is not None:
        if value.array is None:  # it is pending on another thread's tape
            try:
                syncing.materialize(value)
            except TorchPjrtError:  # the other thread will be told
                return None
        alone = Value.of_array(value.spec, value.array)  # type: ignore[arg-type]
        with rebinding():
            if (
                buffer.value is value
            ):  # from here on nothing is called: no other thread writes to it
                buffer.value = alone
                return alone
    return None


def _buffers() -> dict[int, list[weakref.ref[Buffer]]]:
    """All live buffers that hold a value, by the id of that."""
    found: dict[int, list[weakref.ref[Buffer]]] = {}
    for x in buffers.all():
        if type(x) is not Buffer:  # to read the value of a padded one would end its padding
            continue
        value = getattr(x, "value", None)  # another thread may be making it
        if value is not None:
            found.setdefault(id(value), []).append(weakref.ref(x))
    return found


def _is_moved(
    buffer: Buffer,
    old: Value | None,
    result_of: Callable[[Value | None], Result | None],
    traffic: Traffic,
) -> bool:
    """Whether a buffer holds another value than before, which no launch made, nor another thread."""
    value = buffer.value
    if value is None or value is old or result_of(value) is not None:
        return False
    if value.tape is not None:
        return value.tape.thread == threading.get_ident()
    return not value.is_slot and not traffic.is_of_others(value)


def _depends_on_host(seen: Observed) -> bool:
    """Whether the host may have decided what was launched, or on what."""
    sources = [source for launch in seen.launches for source in launch.sources]
    return bool(seen.reads) or any(isinstance(source, Constant) for source in sources)


def _object_to_traffic(seen: Observed, before: tuple[int, int]) -> None:
    if of_thread.replays != before[0]:
        seen.objections.append("it calls another captured step")
    fallbacks = of_thread.fallbacks - before[1]
    if fallbacks:
        seen.objections.append(
            f"it runs {fallbacks} operators on the CPU (see torch_pjrt.report())"
        )
    new = [s for launch in seen.launches for s in launch.sources if isinstance(s, New)]
    new += [read.source for read in seen.reads if isinstance(read.source, New)]
    if new and not fallbacks:
        seen.objections.append(
            f"it takes {len(new)} arrays from elsewhere ({', '.join(str(s.spec) for s in new[:3])}"
            f"{', ...' if len(new) > 3 else ''}): pass them as arguments, on pjrt"
        )
    if not seen.launches:
        seen.objections.append("it computes nothing on pjrt")
    if any(launch.n_seedings > 1 for launch in seen.launches):
        seen.objections.append("it seeds the random numbers")


@contextmanager
def _noting(note: Callable[[Tape, Any], None]) -> Iterator[None]:
    try:
        syncing.listeners.append(note)
        yield
    finally:
        syncing.listeners.remove(note)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
