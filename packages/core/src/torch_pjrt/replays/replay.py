"""Replaying a recorded call: its programs are launched on what its buffers hold now."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from torch_pjrt.client.client import client
from torch_pjrt.client.placing import as_compiled_for
from torch_pjrt.client.stack_elements import copy_of, spread
from torch_pjrt.compile.build import seeding_words
from torch_pjrt.graph.generator import generator
from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import contiguous_spec
from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.observe.counters import counters, of_thread
from torch_pjrt.replays.array_slots import Binding, Stale, Target, array_of, begin, buffer_at
from torch_pjrt.replays.computed_numbers import ComputedNumbers
from torch_pjrt.replays.group_numbers import same_floats
from torch_pjrt.replays.observation import (
    Argument,
    Constant,
    Gradient,
    Kept,
    Launch,
    New,
    Observed,
    Result,
    Source,
)
from torch_pjrt.replays.returned import tensor_on
from torch_pjrt.replays.traffic import Content
from torch_pjrt.run import sync
from torch_pjrt.run.deferred_checks import deferred_checks
from torch_pjrt.run.garbage import after_launch
from torch_pjrt.tensor.storage.buffer import Buffer, buffer_of


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a launch, by their positions among the arrays of a replay.

    These are, in this order: those of the binding, of the tensors outside that are only read, of the
    arguments, and the results of each launch.

    copied  which of the inputs the launch takes although they may be needed afterwards.
    """

    positions: list[int]
    copied: list[int]

    def of(
        self, arrays: Sequence[Any], holders: Sequence[Value | None]
    ) -> tuple[list[Any], list[Value | None]]:
        """The inputs, and the values that hold them."""
        inputs = [arrays[i] for i in self.positions]
        held = [holders[i] for i in self.positions]
        for i in self.copied:
            inputs[i], held[i] = copy_of(inputs[i]), None
        return inputs, held


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a replay: what it began with, and how far it has come.

    arrays, holders   the inputs, as `_Inputs` counts them, and the values that hold them.
    boxes             what each launch gave, as one item, once it is launched.
    arguments         the buffers of the tensors it was called with.
    """

    arrays: list[Any]
    holders: list[Value | None]
    boxes: list[list[Any]]
    arguments: list[Buffer]
    tensors: Sequence[torch.Tensor]

    @property
    def has_begun(self) -> bool:
        return any(self.boxes)


class Replay:
    """A recorded call, ready to be repeated.

    seen     what was observed.
    computed   the numbers that it computes anew from those in optimizers' groups.
    """

    def __init__(self, seen: Observed, computed: ComputedNumbers) -> None:
        self.seen = seen
        self.computed = computed
        self._numbers = [_numbers_of(launch, launch.floats) for launch in seen.launches]
        self._numbers_are_for = computed.following.floats
        self._writes = _writes_outside(seen)
        self._made = [x for x in seen.gradients if not x.replaces]
        taken = _taken(seen)
        sources = [s for launch in seen.launches for s in launch.sources]
        sources += [r.source for r in seen.reads]
        read = {s.buffer for s in sources if isinstance(s, Kept)}
        self._targets = [
            Target(r, b.spec, is_read=r in read, is_taken=Kept(r) in taken)
            for r in self._writes
            if (b := r()) is not None
        ]
        self._only_read = [
            (r, b.spec) for r in read if r not in self._writes and (b := r()) is not None
        ]
        self._taken_arguments = {s.position for s in taken if isinstance(s, Argument)}
        self._constants = list(dict.fromkeys(s for s in sources if isinstance(s, Constant)))
        self._constant_arrays = [client().put(s.content.array()) for s in self._constants]
        self._reads = [r for r in seen.reads if not isinstance(r.source, New)]
        # Until the last read nothing may be lost: the step itself may have to run.
        self._n_undone = max((read.n_launches for read in self._reads), default=0)
        self._positions: dict[Any, int] = {}
        self._binding: Binding | None = None
        self._inputs: list[_Inputs] = []
        self._written: list[int] = []

    def run(
        self, tensors: Sequence[torch.Tensor], floats: Sequence[float]
    ) -> list[Sequence[jax.Array]]:
        """Launch it on these arguments, with these numbers in groups; the results of each launch.

        Raises `Stale`, and nothing was written then: a tensor is not what it was, or a value that the step
        reads is another one.
        """
        if not same_floats(self._numbers_are_for, floats):
            self._compute_numbers(floats)
        arguments = [buffer_of(t) for t in tensors]
        begin(arguments)
        with sync.one_at_a_time():
            only_read = [buffer_at(*known).value for known in self._only_read]
            given = [self._given(i, buffer) for i, buffer in enumerate(arguments)]
            if self._binding is None or not self._binding.stands():
                self._bind(len(arguments))
            assert self._binding is not None
            bound, constants = self._binding.arrays, self._constant_arrays
            call = _Call(
                arrays=[*bound, *(v.array for v in only_read if v), *given, *constants],
                holders=[
                    *[None] * len(bound),
                    *only_read,
                    *[None] * (len(given) + len(constants)),
                ],
                boxes=[[] for _ in self.seen.launches],
                arguments=arguments,
                tensors=tensors,
            )
            del only_read, given
            results = self._done(call)
        after_launch()
        return results

    def let_go(self, tensors: Sequence[torch.Tensor]) -> None:
        """Before the step itself runs on these arguments: let it take the memory that a replay would take.

        What somebody else holds of that is copied, so that the step launches the programs of the recording.
        Raises `Stale` as `run` does.
        """
        begin(map(buffer_of, tensors))
        with sync.one_at_a_time():
            for known in self._only_read:
                buffer_at(*known)
            if self._binding is None or not self._binding.stands():
                self._bind(len(tensors))
            self.release()
            for position in self._taken_arguments:
                buffer = buffer_of(tensors[position])
                array = self._given(position, buffer)
                buffer.value = Value.of_array(buffer.value.spec, array)  # type: ignore[union-attr]

    def _done(self, call: _Call) -> list[Sequence[jax.Array]]:
        """Do all of a call, or none of it: once a launch has taken memory, the rest is done first."""
        start = generator.position()
        try:
            return self._do(call)
        except BaseException as error:
            if not call.has_begun or isinstance(error, Stale):  # what reads has taken nothing
                generator.go_back(start)
                raise
            try:
                self._do(call)
            except Exception:
                self._write_what_is_there(call)
            raise

    def _do(self, call: _Call) -> list[Sequence[jax.Array]]:
        """Do what is not done yet: launch what was not launched, and put results where they belong."""
        assert self._binding is not None
        arrays, holders = list(call.arrays), list(call.holders)
        results: list[Sequence[jax.Array]] = []
        self._read(0, arrays)
        for number, launch in enumerate(self.seen.launches):
            box = call.boxes[number]
            if not box:
                inputs, held = self._inputs[number].of(arrays, holders)
                inputs = as_compiled_for(inputs, launch.program.shardings)
                launch.program.launch(inputs, self._arguments(number, launch), box, values=held)
                del inputs
            results.append(spread(launch.program.boundary, box[0]))
            arrays += results[-1]
            holders += [None] * len(results[-1])
            self._read(number + 1, arrays)
        self._binding.arrays[:] = [arrays[i] for i in self._written]
        self._write(results, call.arguments, call.tensors)
        counters.replays += 1
        of_thread.replays += 1
        return results

    def _write_what_is_there(self, call: _Call) -> None:
        """One launch has failed after others had run: what those gave takes the place of what they took."""
        assert self._binding is not None
        arrays = list(call.arrays)
        for launch, box in zip(self.seen.launches, call.boxes, strict=True):
            if not box:
                break
            arrays += spread(launch.program.boundary, box[0])
        for i, position in enumerate(self._written):
            if position < len(arrays):
                self._binding.arrays[i] = arrays[position]

    def _read(self, n_launches: int, arrays: Sequence[Any]) -> None:
        """What the step read after so many launches has to be the same."""
        for read in self._reads:
            if read.n_launches == n_launches:
                now = Content.of(np.asarray(arrays[self._positions[read.source]]))
                counters.downloads += 1
                if now != read.content:
                    raise Stale(f"a value that the step reads was {read.content}, is {now}")

    def _given(self, position: int, buffer: Buffer) -> Any:
        """What an argument holds; a copy if a launch takes it and somebody else holds it."""
        if buffer.value is None or buffer.value.array is None:
            raise Stale("an argument is empty")
        is_alone, array = array_of(buffer)
        return array if is_alone or position not in self._taken_arguments else copy_of(array)

    def _bind(self, n_arguments: int) -> None:
        """Bind the targets, and find out where each launch's inputs and the targets' results are."""
        with quiet():
            self._bind_anew(n_arguments)

    def _bind_anew(self, n_arguments: int) -> None:
        self.release()
        binding = Binding(self._targets)
        positions: dict[Any, int] = {}
        for known in [t.buffer for t in binding.targets] + [r for r, _ in self._only_read]:
            positions[Kept(known)] = len(positions)
        for i in range(n_arguments):
            positions[Argument(i)] = len(positions)
        for constant in self._constants:
            positions[constant] = len(positions)
        for number, launch in enumerate(self.seen.launches):
            for i, value in enumerate(launch.program.outputs):
                positions[Result(number, value, i)] = len(positions)
        n_bound = len(binding.targets)
        inputs: list[_Inputs] = []
        for number, launch in enumerate(self.seen.launches):
            at = [positions[source] for source in launch.sources]
            copied = [
                i
                for i in _taken_inputs(launch)
                if number < self._n_undone
                or (at[i] >= n_bound and not isinstance(launch.sources[i], Argument))
            ]
            inputs.append(_Inputs(at, copied))
        self._written = [positions[self._writes[t.buffer]] for t in binding.targets]
        self._positions, self._inputs, self._binding = positions, inputs, binding

    def release(self) -> None:
        """Let go of the tensors outside: somebody else runs programs on them now."""
        # First it has none: a release may be cut short.
        binding, self._binding = self._binding, None
        if binding is not None:
            binding.release()

    def _write(
        self,
        results: Sequence[Sequence[jax.Array]],
        arguments: Sequence[Buffer],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Put results into arguments, as the recorded call did, and look at what was checked."""
        for result, targets in self.seen.writes.items():
            for target in targets:
                if isinstance(target, Argument):
                    buffer = arguments[target.position]
                    array = results[result.launch][result.position]
                    buffer.value = Value.of_array(buffer.value.spec, array)  # type: ignore[union-attr]
        for gradient in self._made:
            _put_gradient(gradient, results, tensors)
        for result, refusals in self.seen.checks.items():
            array = results[result.launch][result.position]
            found = Value.of_array(contiguous_spec(array.shape, torch.int64), array)
            deferred_checks(found).refusals.extend(refusals)

    def _compute_numbers(self, floats: Sequence[float]) -> None:
        """The numbers of each launch, for these in optimizers' groups."""
        self._numbers = [
            _numbers_of(launch, self.computed.floats_of(number, launch, floats))
            for number, launch in enumerate(self.seen.launches)
        ]
        self._numbers_are_for = floats

    def _arguments(self, number: int, launch: Launch) -> list[np.ndarray]:
        """The numbers of the program's call: a new seed and offset, and the rest as it was recorded."""
        recorded = self._numbers[number]
        if not launch.n_seedings:
            return recorded
        seed, offset = generator.reserve(launch.n_draws)
        ints = recorded[0].copy()
        words = seeding_words(seed, offset)
        ints[: len(words)] = words
        return [ints, *recorded[1:]]


def _put_gradient(
    made: Gradient, results: Sequence[Sequence[jax.Array]], tensors: Sequence[torch.Tensor]
) -> None:
    target = made.target
    tensor = tensors[target.position] if isinstance(target, Argument) else target.tensor()
    if tensor is not None:
        array = results[made.result.launch][made.result.position]
        tensor.grad = tensor_on(array, made.base, *made.look)


def _numbers_of(launch: Launch, floats: Sequence[float]) -> list[np.ndarray]:
    return launch.program.plan.arguments_of([0, 0] * launch.n_seedings, launch.ints, floats)


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
