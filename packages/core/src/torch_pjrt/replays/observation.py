"""One call of a step, observed: what it launched, where the inputs came from and the results went.

Inputs and results are traced to *buffers*, which stand for the memory of tensors: parameters, optimizer
state, arguments. The call itself runs as always.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_pjrt.device import guard
from torch_pjrt.graph.face import Face
from torch_pjrt.graph.tape import Tape, Uploaded, Value
from torch_pjrt.observe.counters import counters
from torch_pjrt.run import sync as syncing
from torch_pjrt.run import watch as watching
from torch_pjrt.tensor.buffer import Buffer, buffer_of, is_pjrt

if TYPE_CHECKING:
    from torch_pjrt.compile.programs import Program


@dataclass(frozen=True, slots=True)
class Argument:
    """The buffer of the tensor at this place among the call's tensors."""

    place: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A buffer that lives outside of the step."""

    buffer: weakref.ref[Buffer]


@dataclass(frozen=True, slots=True)
class Result:
    """What an earlier launch of the same call gave."""

    launch: int
    place: int


@dataclass(frozen=True, slots=True)
class New:
    """A value that came into being during the call, from the host."""

    face: Face


Source = Argument | Kept | Result | New


@dataclass(slots=True)
class Launch:
    """One program that the call launched.

    sources  where each of its inputs came from.
    code     the tape, with its numbers: what the call recorded.
    n_draws  how many random operators drew since the last seeding; `n_seedings`, how often it was (re)seeded.
    """

    program: Program
    sources: list[Source]
    code: tuple[int, ...]
    ints: list[int]
    floats: list[float]
    n_seedings: int
    n_draws: int


@dataclass(slots=True)
class Observed:
    """All that was seen of one call.

    writes     the buffers that were there before and hold a result now.
    fresh      the results that new buffers hold which are not returned: gradients, for example.
    watches    the results that are watched for errors, and the errors.
    objections why the call cannot be replayed, in words.
    """

    launches: list[Launch] = field(default_factory=list)
    writes: dict[Result, list[Source]] = field(default_factory=dict)
    fresh: dict[Result, list[weakref.ref[Buffer]]] = field(default_factory=dict)
    watches: dict[Result, list[watching.Refusal]] = field(default_factory=dict)
    objections: list[str] = field(default_factory=list)


def observed(
    call: Callable[[], Any], tensors: Sequence[torch.Tensor]
) -> tuple[Any, Observed, Callable[[torch.Tensor], Result | None]]:
    """Call it: what it returned, what was seen, and which result of a launch a returned tensor holds."""
    syncing.sync("a captured step begins")
    seen = Observed()
    places, before = _prepared(tensors)
    made: dict[int, tuple[weakref.ref[Value], Result]] = {}

    def result_of(value: Value | None) -> Result | None:
        found = made.get(id(value))
        return found[1] if found is not None and found[0]() is value else None

    def source_of(value: Value) -> Source:
        if (result := result_of(value)) is not None:
            return result
        for reference in before.get(id(value), ()):
            buffer = reference()
            if buffer is not None and known[id(buffer)][1]() is value:
                place = places.get(id(buffer))
                return Argument(place) if place is not None else Kept(reference)
        return New(value.face)

    # Buffers change what they hold during the call; what they held before is asked for.
    known = {
        id(b): (r, weakref.ref(b.value)) for refs in before.values() for r in refs if (b := r())
    }

    def note(tape: Tape, program: Program) -> None:
        number = len(seen.launches)
        results = [weakref.ref(tape.values[n]) for n in program.outputs]
        launch = Launch(
            program,
            [source_of(value) for value in tape.inputs],
            tuple(tape.code),
            list(tape.ints),
            list(tape.floats),
            len(tape.draws),
            tape.n_draws,
        )
        seen.launches.append(launch)
        for place, reference in enumerate(results):
            value = reference()
            if value is not None:
                made[id(value)] = (reference, Result(number, place))
        for watch in watching.pending():  # soon somebody looks at them, and they are gone
            if (result := result_of(watch.value)) is not None:
                seen.watches[result] = list(watch.refusals)

    counted = (counters.uploads, counters.downloads, sum(counters.fallbacks.values()))
    n_backward = guard.runs()
    with _noting(note):
        returned = call()
        syncing.sync("a captured step ends")
    _object_to_traffic(seen, counted)

    own = {id(buffer_of(t)) for t in _tensors(returned) if is_pjrt(t)}
    for references in _buffers().values():
        for reference in references:
            buffer = reference()
            result = result_of(buffer.value) if buffer is not None else None
            if buffer is None or result is None:
                continue
            if id(buffer) in known and known[id(buffer)][0]() is buffer:  # ids are used again
                place = places.get(id(buffer))
                target = Argument(place) if place is not None else Kept(reference)
                seen.writes.setdefault(result, []).append(target)
            elif id(buffer) not in own:
                seen.fresh.setdefault(result, []).append(reference)
    if guard.runs() == n_backward and any(
        t.requires_grad and t.grad_fn for t in _tensors(returned)
    ):
        seen.objections.append(
            "it returns a tensor that needs gradients, and its backward does not run inside: "
            "call backward() in the step, or return a tensor that is detached"
        )
    return returned, seen, lambda tensor: result_of(buffer_of(tensor).value)


def _prepared(
    tensors: Sequence[torch.Tensor],
) -> tuple[dict[int, int], dict[int, list[weakref.ref[Buffer]]]]:
    """By the ids of their buffers, the places of the arguments; and all buffers by their values' ids.

    Each buffer gets a value of its own. Values that came from the host know their range, and indices are
    checked by it at the call: here the device has to check them, since a replay makes no calls.
    """
    places: dict[int, int] = {}
    for place, tensor in enumerate(tensors):
        buffer = buffer_of(tensor)
        places.setdefault(id(buffer), place)
        if isinstance(buffer.value, Uploaded):
            buffer.value = _alone(buffer.value)
    before = _buffers()
    for references in list(before.values()):
        for reference in references[1:]:
            buffer = reference()
            if buffer is not None and buffer.value is not None:
                buffer.value = _alone(buffer.value)
                before[id(buffer.value)] = [reference]
        del references[1:]
    return places, before


def _alone(value: Value) -> Value:
    assert value.array is not None
    return Value.of_array(value.face, value.array)


def _buffers() -> dict[int, list[weakref.ref[Buffer]]]:
    """All live buffers that hold a value, by the id of that."""
    found: dict[int, list[weakref.ref[Buffer]]] = {}
    for x in gc.get_objects():
        if type(x) is Buffer and x.value is not None:
            found.setdefault(id(x.value), []).append(weakref.ref(x))
    return found


def _object_to_traffic(seen: Observed, before: tuple[int, int, int]) -> None:
    uploads = counters.uploads - before[0]
    downloads = counters.downloads - before[1]
    fallbacks = sum(counters.fallbacks.values()) - before[2]
    if fallbacks:
        seen.objections.append(
            f"it runs {fallbacks} operators on the CPU (see torch_pjrt.report())"
        )
    if downloads > fallbacks:
        seen.objections.append(
            f"it reads {downloads} values of tensors (.item(), print, control flow): what Python does with "
            "them would not happen in a replay; torch_pjrt.report() names the lines"
        )
    new = [s for launch in seen.launches for s in launch.sources if isinstance(s, New)]
    if new and not fallbacks:
        seen.objections.append(
            f"it makes {len(new)} tensors from the host ({', '.join(str(s.face) for s in new[:3])}"
            f"{', ...' if len(new) > 3 else ''}; {uploads} transfers): pass them as arguments, on pjrt"
        )
    if not seen.launches:
        seen.objections.append("it computes nothing on pjrt")
    if any(launch.n_seedings > 1 for launch in seen.launches):
        seen.objections.append("it seeds the random numbers")


@contextmanager
def _noting(note: Callable[[Tape, Any], None]) -> Iterator[None]:
    syncing.listeners.append(note)
    try:
        yield
    finally:
        syncing.listeners.remove(note)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
