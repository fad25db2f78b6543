"""Replaying a recorded call: its programs are launched on what its buffers hold now."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from torch_pjrt.compile.build import as_int64
from torch_pjrt.graph.face import Face, contiguous_face
from torch_pjrt.graph.tape import Value
from torch_pjrt.observe.counters import counters
from torch_pjrt.replays.observation import Argument, Kept, Launch, Observed, Result
from torch_pjrt.run import sync
from torch_pjrt.run.watch import Refusal, watched
from torch_pjrt.tensor.buffer import Buffer, buffer_of

_WATCHED = contiguous_face((2,), torch.int64)


class Stale(Exception):
    """The recording does not fit any more: its text says why."""


@dataclass(frozen=True, slots=True)
class _Input:
    """An input of a program: what a buffer holds, or what an earlier launch gave.

    buffer  of a tensor that lives outside of the step, and what it must look like.
    place   else the argument whose buffer it is; the key of the recording says what that looks like.
    """

    buffer: weakref.ref[Buffer] | None
    face: Face | None
    place: int
    result: Result | None
    donated: bool


@dataclass(frozen=True, slots=True)
class _Output:
    """Where a result goes; `kept` are the buffers of tensors that live outside of the step."""

    place: int
    kept: tuple[weakref.ref[Buffer], ...]
    arguments: tuple[int, ...]
    refusals: Sequence[Refusal] | None


class Replay:
    """A recorded call, ready to be repeated.

    seen     what was observed.
    """

    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self._numbers = [_numbers_of(launch) for launch in seen.launches]
        self._inputs = [_inputs_of(launch) for launch in seen.launches]
        self._outputs = [_outputs_of(seen, i) for i in range(len(seen.launches))]

    def run(self, tensors: Sequence[torch.Tensor]) -> list[Sequence[jax.Array]]:
        """Launch it on these arguments; the results of each launch. Raises `Stale`, then nothing is done."""
        sync.sync("a captured step begins")
        arguments = [buffer_of(t) for t in tensors]
        results: list[Sequence[jax.Array]] = []
        with sync.one_at_a_time():
            if len(self._inputs) > 1:
                self._check(arguments)
            for number, launch in enumerate(self.seen.launches):
                arrays = _arrays(self._inputs[number], arguments, results)
                results.append(launch.program.launch(arrays, self._arguments(number, launch)))
                _write(self._outputs[number], results[-1], arguments)
        counters.replays += 1
        return results

    def _check(self, arguments: Sequence[Buffer]) -> None:
        """Raise `Stale` for what a later launch would find, before the first."""
        for inputs in self._inputs:
            for x in inputs:
                if x.result is None:
                    _array(x, arguments)

    def _arguments(self, number: int, launch: Launch) -> list[np.ndarray]:
        """The numbers of the program's call: a new seed and offset, and the rest as it was recorded."""
        recorded = self._numbers[number]
        if not launch.n_seedings:
            return recorded
        from torch_pjrt.device.generator import generator

        seed, offset = generator.reserve(launch.n_draws)
        ints = recorded[0].copy()
        ints[0], ints[1] = as_int64(seed), as_int64(offset)
        return [ints, *recorded[1:]]


def _numbers_of(launch: Launch) -> list[np.ndarray]:
    return launch.program.plan.arguments_of([0, 0] * launch.n_seedings, launch.ints, launch.floats)


def _inputs_of(launch: Launch) -> list[_Input]:
    donated = {-n - 1 for n in launch.program.donated}
    inputs = []
    for i, source in enumerate(launch.sources):
        reference = source.buffer if isinstance(source, Kept) else None
        buffer = reference() if reference is not None else None
        face = buffer.face if buffer is not None else None
        place = source.place if isinstance(source, Argument) else -1
        result = source if isinstance(source, Result) else None
        inputs.append(_Input(reference, face, place, result, i in donated))
    return inputs


def _outputs_of(seen: Observed, launch: int) -> list[_Output]:
    outputs = []
    for place in range(len(seen.launches[launch].program.outputs)):
        result = Result(launch, place)
        targets = seen.writes.get(result, [])
        kept = [t.buffer for t in targets if isinstance(t, Kept)]
        arguments = [t.place for t in targets if isinstance(t, Argument)]
        refusals = seen.watches.get(result)
        kept += seen.fresh.get(result, [])
        if kept or arguments or refusals:
            outputs.append(_Output(place, tuple(kept), tuple(arguments), refusals))
    return outputs


def _arrays(
    inputs: Sequence[_Input],
    arguments: Sequence[Buffer],
    results: Sequence[Sequence[jax.Array]],
) -> list[Any]:
    """The program's inputs. One that is donated but held by somebody else is copied first."""
    arrays = []
    for x in inputs:
        if x.result is None:
            is_free, array = _array(x, arguments)
        else:
            is_free, array = False, results[x.result.launch][x.result.place]
        arrays.append(array.copy() if x.donated and not is_free else array)
    return arrays


def _array(x: _Input, arguments: Sequence[Buffer]) -> tuple[bool, Any]:
    """What the input's buffer holds, and whether nobody but the buffer holds it."""
    if x.buffer is None:
        buffer: Buffer | None = arguments[x.place]
    else:
        buffer = x.buffer()
        if buffer is None:
            raise Stale("a tensor that the step used is gone")
        if buffer.face is not x.face:
            raise Stale(f"a tensor that the step used was {x.face}, is {buffer.face}")
    value = buffer.value
    array = value.array if value is not None else None
    if array is None:
        raise Stale("a tensor that the step used was emptied")
    return sys.getrefcount(value) + sys.getrefcount(array) <= _ALONE, array


def _write(
    outputs: Sequence[_Output], results: Sequence[jax.Array], arguments: Sequence[Buffer]
) -> None:
    """Put the results where the recorded call put them."""
    for output in outputs:
        array = results[output.place]
        for reference in output.kept:
            buffer = reference()
            if buffer is not None:
                buffer.value = Value.of_array(buffer.value.face, array)  # type: ignore[union-attr]
        for place in output.arguments:
            buffer = arguments[place]
            buffer.value = Value.of_array(buffer.value.face, array)  # type: ignore[union-attr]
        if output.refusals is not None:
            watched(Value.of_array(_WATCHED, array)).refusals.extend(output.refusals)


def _alone() -> int:
    """The sum of the two reference counts in `_array` where only the buffer holds the value."""
    global _ALONE
    held: Any = object()
    buffer = Buffer(Value.of_array(_WATCHED, held), _WATCHED)
    del held
    reference = weakref.ref(buffer)
    _ALONE = 0
    while not _array(_Input(reference, _WATCHED, -1, None, donated=True), ())[0]:
        _ALONE += 1
    return _ALONE


_ALONE = 0
_ALONE = _alone()
