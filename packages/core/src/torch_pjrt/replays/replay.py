"""Replaying a recorded call: its programs are launched on what its buffers hold now."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from torch_pjrt.compile.build import seeding_words
from torch_pjrt.graph.face import contiguous_face
from torch_pjrt.graph.tape import Value
from torch_pjrt.observe.counters import counters
from torch_pjrt.replays.bound import Binding, Stale, Target, array_of, buffer_at
from torch_pjrt.replays.observation import Argument, Kept, Launch, Observed, Result, Source
from torch_pjrt.run import sync
from torch_pjrt.run.watch import watched
from torch_pjrt.tensor.buffer import Buffer, buffer_of

_WATCHED = contiguous_face((2,), torch.int64)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a launch, by their places among the arrays of a replay.

    These are, in this order: those of the binding, of the tensors outside that are only read, of the
    arguments, and the results of each launch.

    copied  which of the inputs the launch takes although they may be needed afterwards.
    """

    places: list[int]
    copied: list[int]

    def of(
        self, arrays: Sequence[Any], holders: Sequence[Value | None]
    ) -> tuple[list[Any], list[Value | None]]:
        """The inputs, and the values that hold them."""
        inputs = [arrays[i] for i in self.places]
        held = [holders[i] for i in self.places]
        for i in self.copied:
            inputs[i], held[i] = inputs[i].copy(), None
        return inputs, held


class Replay:
    """A recorded call, ready to be repeated.

    seen     what was observed.
    """

    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self._numbers = [_numbers_of(launch) for launch in seen.launches]
        self._writes = _writes_outside(seen)
        taken = _taken(seen)
        read = {s.buffer for launch in seen.launches for s in launch.sources if isinstance(s, Kept)}
        self._targets = [
            Target(r, b.face, is_read=r in read, is_taken=Kept(r) in taken)
            for r in self._writes
            if (b := r()) is not None
        ]
        self._only_read = [
            (r, b.face) for r in read if r not in self._writes and (b := r()) is not None
        ]
        self._taken_arguments = {s.place for s in taken if isinstance(s, Argument)}
        self._binding: Binding | None = None
        self._inputs: list[_Inputs] = []
        self._written: list[int] = []

    def run(self, tensors: Sequence[torch.Tensor]) -> list[Sequence[jax.Array]]:
        """Launch it on these arguments; the results of each launch. Raises `Stale`, then nothing is done."""
        sync.sync("a captured step begins")
        arguments = [buffer_of(t) for t in tensors]
        results: list[Sequence[jax.Array]] = []
        with sync.one_at_a_time():
            only_read = [buffer_at(*known).value for known in self._only_read]
            given = [self._given(i, buffer) for i, buffer in enumerate(arguments)]
            if self._binding is None or not self._binding.stands():
                self._bind(len(arguments))
            assert self._binding is not None
            arrays = [*self._binding.arrays, *(v.array for v in only_read if v), *given]
            holders = [*[None] * len(self._binding.arrays), *only_read, *[None] * len(given)]
            for number, launch in enumerate(self.seen.launches):
                inputs, held = self._inputs[number].of(arrays, holders)
                numbers = self._arguments(number, launch)
                results.append(launch.program.launch(inputs, numbers, values=held))
                arrays += results[-1]
                holders += [None] * len(results[-1])
            self._binding.arrays[:] = [arrays[i] for i in self._written]
            self._write(results, arguments)
        counters.replays += 1
        return results

    def _given(self, place: int, buffer: Buffer) -> Any:
        """What an argument holds; a copy if a launch takes it and somebody else holds it."""
        if buffer.value is None or buffer.value.array is None:
            raise Stale("an argument is empty")
        is_alone, array = array_of(buffer)
        return array if is_alone or place not in self._taken_arguments else array.copy()

    def _bind(self, n_arguments: int) -> None:
        """Bind the targets, and find out where each launch's inputs and the targets' results are."""
        self.release()
        self._binding = binding = Binding(self._targets)
        places: dict[Any, int] = {}
        for known in [t.buffer for t in binding.targets] + [r for r, _ in self._only_read]:
            places[Kept(known)] = len(places)
        for i in range(n_arguments):
            places[Argument(i)] = len(places)
        for number, launch in enumerate(self.seen.launches):
            for i in range(len(launch.program.outputs)):
                places[Result(number, i)] = len(places)
        n_bound = len(binding.targets)
        self._inputs = []
        for launch in self.seen.launches:
            at = [places[source] for source in launch.sources]
            copied = [
                i
                for i in _taken_inputs(launch)
                if at[i] >= n_bound and not isinstance(launch.sources[i], Argument)
            ]
            self._inputs.append(_Inputs(at, copied))
        self._written = [places[self._writes[t.buffer]] for t in binding.targets]

    def release(self) -> None:
        """Let go of the tensors outside: somebody else runs programs on them now."""
        if self._binding is not None:
            self._binding.release()
            self._binding = None

    def _write(self, results: Sequence[Sequence[jax.Array]], arguments: Sequence[Buffer]) -> None:
        """Put results into arguments, as the recorded call did, and have a look at what is watched."""
        for result, targets in self.seen.writes.items():
            for target in targets:
                if isinstance(target, Argument):
                    buffer = arguments[target.place]
                    array = results[result.launch][result.place]
                    buffer.value = Value.of_array(buffer.value.face, array)  # type: ignore[union-attr]
        for result, refusals in self.seen.watches.items():
            found = Value.of_array(_WATCHED, results[result.launch][result.place])
            watched(found).refusals.extend(refusals)

    def _arguments(self, number: int, launch: Launch) -> list[np.ndarray]:
        """The numbers of the program's call: a new seed and offset, and the rest as it was recorded."""
        recorded = self._numbers[number]
        if not launch.n_seedings:
            return recorded
        from torch_pjrt.device.generator import generator

        seed, offset = generator.reserve(launch.n_draws)
        ints = recorded[0].copy()
        words = seeding_words(seed, offset)
        ints[: len(words)] = words
        return [ints, *recorded[1:]]


def _numbers_of(launch: Launch) -> list[np.ndarray]:
    return launch.program.plan.arguments_of([0, 0] * launch.n_seedings, launch.ints, launch.floats)


def _writes_outside(seen: Observed) -> dict[weakref.ref[Buffer], Result]:
    """The buffers outside that hold a result at the end, and which."""
    found = {r: result for result, references in seen.fresh.items() for r in references}
    for result, targets in seen.writes.items():
        found |= {t.buffer: result for t in targets if isinstance(t, Kept)}
    return found


def _taken_inputs(launch: Launch) -> list[int]:
    """Which of its inputs a launch takes the memory of."""
    return [-n - 1 for n in launch.program.donated]


def _taken(seen: Observed) -> set[Source]:
    return {launch.sources[i] for launch in seen.launches for i in _taken_inputs(launch)}
