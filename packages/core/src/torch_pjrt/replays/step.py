"""`torch_pjrt.capture(step)`: a step whose programs are launched without running its Python."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch.utils import _pytree as pytree

from torch_pjrt.device.counting_optimizers import (
    can_count_on_the_device,
    counting_on_the_device,
    hint_for,
    move_counts,
)
from torch_pjrt.errors import CaptureError
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.replays import comparison, outside
from torch_pjrt.replays.array_slots import Stale
from torch_pjrt.replays.as_it_is import as_it_is
from torch_pjrt.replays.computed_numbers import ComputedNumbers
from torch_pjrt.replays.group_numbers import GroupNumbers
from torch_pjrt.replays.kinds import PLAIN
from torch_pjrt.replays.observation import Observed, at_their_gradients, observed, range_of_mask
from torch_pjrt.replays.replay import Replay
from torch_pjrt.replays.returned import Template, differences_of_templates, template_of
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt, spec_and_offset

P = ParamSpec("P")
R = TypeVar("R")

# So often a step is observed in vain before it is refused.
_MOST_ATTEMPTS = 4
# At the 16th replay, the 64th, the 256th, ... the step runs in Python and is compared with its recording.
_FIRST_CHECK = 16
# Recordings that are given up before they are replayed cost much more than the step: so many calls are not
# observed then, at most.
_LONGEST_REST = 1024
_MOST_RESTARTS_KEPT = 100
_FOLLOWED = "from now on replays compute anew what depends on them"
_CHANGE = "change the step, or call it without capture()"
_ON_THE_DEVICE = (
    "the optimizer counts its steps on the host: from now on it counts on the device meanwhile, "
    "as with capturable=True"
)
# So many of the things that changed, or that a step changes, are named.
_MOST_NAMED = 4


@overload
def capture(step: Callable[P, R], *, required: bool = True) -> Captured[P, R]: ...


@overload
def capture(*, required: bool = True) -> Callable[[Callable[P, R]], Captured[P, R]]: ...


def capture(step: Any = None, *, required: bool = True) -> Any:
    """A function that does what `step` does, at the host's cost of launching its programs.

        >>> total = torch.zeros((), device="pjrt")
        >>> step = torch_pjrt.capture(lambda x: total.add_(x.sum()))  # or as a decorator
        >>> [step(torch.ones(2).to("pjrt")).item() for _ in range(4)]
        [2.0, 4.0, 6.0, 8.0]

    step     called with tensors on `pjrt` and anything that compares by `==`; returns tensors (in lists,
             tuples, dicts) on `pjrt` and Python values. It may change tensors that it closes over:
             parameters, optimizer state, gradients.
    required if False, a step that a replay would not repeat runs as it is, with a warning that says why.

    The first call runs, and compiles the program of all. The next ones are observed, until two in a row did
    the same; from then on calls are replayed: programs are launched on what the tensors hold by then, random
    numbers go on, and none of the step's Python runs. Arguments of another shape, dtype or value, another
    mode of a module, a plain value that the step can see, a replaced parameter: each is noticed, and the
    step is run and observed again. Learning rates and other numbers of optimizers may change: once they
    have, replays compute with the new ones. From time to time the step is run and compared with its
    recording.

    Tensors that a replay returns need no gradients; versions (`_version`) of tensors do not count replays.

    Raises `CaptureError`, before it runs anything, for a step that a replay would not repeat: one that reads
    values, makes tensors from the host, gives an operator a Python number that changes with each call,
    changes plain attributes, keeps tensors that it made. Raises it also where such a thing is found later,
    whatever `required` is.
    """
    if step is None:
        return functools.partial(capture, required=required)
    return Captured(step, required)


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    """What is replayed. Its parts fit each other: an interrupt may come at any call, so they come as one.

    outside    what the step saw of the world after the last call that ran in Python.
    """

    replay: Replay
    template: Template
    outside: outside.Snapshot


@dataclass(slots=True)
class _Progress:
    """How far the calls with one kind of arguments have come.

    last       what was seen of the last call that was observed, and what it returned.
    why        why the last observations were in vain.
    counts_on_device   optimizers that can are made to count on the device while the step runs.
    followed   numbers in optimizers' groups that have changed: they are followed, and computed anew.
    is_refused   it was said that calls of this kind cannot be replayed.
    n_vain     how many recordings were given up since the last replay; `n_resting`: how many calls are not
               observed meanwhile.
    """

    calls: int = 0
    attempts: int = 0
    last: tuple[Observed, Template, outside.Snapshot] | None = None
    recording: _Recording | None = None
    replays: int = 0
    why: list[str] = field(default_factory=list)
    counts_on_device: bool = False
    followed: GroupNumbers = field(default_factory=GroupNumbers)
    is_refused: bool = False
    n_vain: int = 0
    n_resting: int = 0

    def rest(self) -> None:
        """Let more and more calls pass before the next is observed."""
        self.n_resting = min(1 << self.n_vain, _LONGEST_REST)

    def is_resting(self) -> bool:
        """Whether this call passes."""
        self.n_resting -= self.n_resting > 0
        return self.n_resting > 0

    def start_anew(self) -> None:
        """Observe again."""
        recording, self.recording = self.recording, None
        self.last = None
        self.attempts = self.replays = 0
        if recording is not None:
            recording.replay.release()


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """The arguments of a call: all, the tensors among them, and the objects whose attributes may change."""

    args: Any
    kwargs: Any
    tensors: list[torch.Tensor]
    given: list[Any]

    def of(self, step: Callable[..., R]) -> R:
        """Call the step."""
        return step(*self.args, **self.kwargs)


class Captured(Generic[P, R]):
    """What `capture` returns.

    required  whether a step that cannot be replayed is refused.
    replays   how many calls were replayed.
    restarts  why recordings were given up and made again, in words: the last hundred times.
    """

    def __init__(self, step: Callable[P, R], required: bool = True) -> None:
        functools.update_wrapper(self, step, updated=())
        self.step = step
        self.required = required
        self.replays = 0
        self.restarts: list[str] = []
        self._progress: dict[Any, _Progress] = {}
        self._lock = threading.RLock()

    def __reduce__(self) -> Any:
        """A copy has the step's copy, and observes that anew."""
        return Captured, (self.step, self.required)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """One call at a time: another thread's would change what is compared and replayed."""
        with self._lock:
            return self._called(*args, **kwargs)

    def _called(self, *args: P.args, **kwargs: P.kwargs) -> R:
        leaves, treespec = pytree.tree_flatten((args, kwargs))
        tensors = [x for x in leaves if is_pjrt(x)]
        given = [x for x in leaves if not isinstance(x, (torch.Tensor, *PLAIN))]
        key = (treespec, tuple([_look(x) for x in leaves]), _shared(tensors))
        progress = self._progress.setdefault(key, _Progress())
        call = _Call(args, kwargs, tensors, given)
        recording = self._fitting(progress, call)
        if recording is not None:
            try:
                floats = progress.followed.read()
                if floats is None:
                    raise Stale(
                        f"{progress.followed.names()} of an optimizer are no floats any more"
                    )
                is_known = recording.replay.computed.fit(floats)
                if is_known and not _is_time_to_check(progress.replays):
                    return self._replayed(progress, recording, tensors, floats)
                recording.replay.let_go(tensors)
            except Stale as stale:
                self._give_up(progress, str(stale))
            else:
                return self._checked(progress, recording, call, may_differ=not is_known)
        progress.calls += 1
        if progress.calls == 1 or progress.is_resting():
            return self._as_it_is(progress, call)
        if progress.attempts < _MOST_ATTEMPTS:
            return self._observed(progress, call)
        if self.required:
            raise self._refusal(progress, given)
        if not progress.is_refused:
            progress.is_refused = True
            warnings.warn(
                f"{self._refusal(progress, given)}\n  instead: it runs as it is", stacklevel=3
            )
        return self._as_it_is(progress, call)

    def _as_it_is(self, progress: _Progress, call: _Call) -> R:
        returned, has_counted = as_it_is(lambda: call.of(self.step), call.tensors)
        progress.counts_on_device |= has_counted
        return returned

    def _refusal(self, progress: _Progress, given: list[Any]) -> CaptureError:
        return CaptureError(
            f"`{self._name()}` cannot be captured: a replay would not do what it does.",
            saw=_in_words(progress.why),
            expected="the same operators on the same tensors in each call, and no reads",
            hint=hint_for(outside.Snapshot(self.step, given).optimizers) or _CHANGE,
        )

    def _fitting(self, progress: _Progress, call: _Call) -> _Recording | None:
        """The recording, if a replay would do what the step would."""
        recording = progress.recording
        if recording is None:
            return None
        before = recording.outside
        if not before.holds(call.given):
            now = outside.Snapshot(self.step, call.given, progress.followed)
            if changed := outside.differences(before, now):
                self._give_up(progress, _in_words(changed))
                progress.followed = progress.followed.with_changed(before.numbers, now.numbers)
                return None
            now.gradients = before.gradients
            recording = progress.recording = replace(recording, outside=now)
        if before.gradients.fit(call.tensors):
            return recording
        return self._at_other_gradients(progress, recording, call)

    def _at_other_gradients(
        self, progress: _Progress, recording: _Recording, call: _Call
    ) -> _Recording | None:
        """The recording for gradients that are not its own; None if a replay cannot write to them."""
        gradients = recording.outside.gradients.moved(call.tensors)
        seen = at_their_gradients(recording.replay.seen) if gradients is not None else None
        if seen is None or gradients is None:
            self._give_up(progress, "gradients are there that were not, or are not that were")
            return None
        recording.replay.release()
        now = recording.outside.with_gradients(gradients)
        moved_replay = Replay(seen, recording.replay.computed)
        moved = progress.recording = replace(recording, replay=moved_replay, outside=now)
        return moved

    def _start_anew(self, progress: _Progress, why: str) -> None:
        self.restarts.append(why)
        del self.restarts[:-_MOST_RESTARTS_KEPT]
        progress.start_anew()

    def _give_up(self, progress: _Progress, why: str) -> None:
        """Start anew for something that the step saw; after some such recordings that were in vain, rest."""
        self._start_anew(progress, why)
        progress.n_vain += 1
        if progress.n_vain >= _MOST_ATTEMPTS:
            progress.rest()
        if progress.n_vain == _MOST_ATTEMPTS:
            warnings.warn(
                f"`{self._name()}` was recorded {_MOST_ATTEMPTS} times and never replayed: in each next call "
                "it saw something else. From now on most calls run it as it is.\n"
                f"  saw: {why}\n"
                "  expected: the same in each call\n"
                "  hint: pass to the step as an argument what changes",
                stacklevel=4,
            )

    def _replayed(
        self,
        progress: _Progress,
        recording: _Recording,
        tensors: list[torch.Tensor],
        floats: Sequence[float],
    ) -> R:
        results = recording.replay.run(tensors, floats)
        progress.replays += 1
        progress.n_vain = 0
        self.replays += 1
        return recording.template.filled(results, tensors)

    def _observed(self, progress: _Progress, call: _Call) -> R:
        returned, seen, template, now = self._run_observed(progress, call)
        if seen.is_disturbed:
            # The call before it is compared with none, either: that was no attempt.
            progress.attempts -= progress.last is not None
            progress.last = None
            return returned
        why = list(seen.objections)
        recording = None
        followed = progress.followed
        if progress.last is not None:
            before, returned_before, outside_before = progress.last
            followed = followed.with_changed(outside_before.numbers, now.numbers)
            is_last = progress.attempts + 1 == _MOST_ATTEMPTS
            why += comparison.differences(before, seen, may_take_less=is_last)
            why += differences_of_templates(returned_before, template)
            if not why:
                computed = ComputedNumbers.of(before, seen)
                recording = _Recording(Replay(seen, computed), template, now)
        progress.why, progress.last, progress.recording = why, (seen, template, now), recording
        progress.attempts = 0 if recording is not None else progress.attempts + 1
        if why:
            self._help(progress, now, followed)
        return returned

    def _help(self, progress: _Progress, now: outside.Snapshot, followed: GroupNumbers) -> None:
        """Begin anew where something can be done about optimizers whose steps are not the same."""
        reasons = []
        counts_on_device = progress.counts_on_device or can_count_on_the_device(now.optimizers)
        if counts_on_device and not progress.counts_on_device:
            reasons.append(_ON_THE_DEVICE)
        if len(followed) > len(progress.followed):
            reasons.append(f"{followed.names()} of an optimizer change: {_FOLLOWED}")
        if reasons:
            self._start_anew(progress, "; ".join(reasons))
            progress.counts_on_device, progress.followed = counts_on_device, followed

    def _checked(
        self, progress: _Progress, recording: _Recording, call: _Call, *, may_differ: bool
    ) -> R:
        """Run the step and compare it with its recording.

        It `may_differ` where a number in an optimizer's group is another one for the first time.
        """
        returned, seen, template, now = self._run_observed(progress, call)
        if seen.is_disturbed:
            self._start_anew(progress, "a handler or another thread ran what the step recorded")
            return returned
        why = [
            *seen.objections,
            *comparison.differences(recording.replay.seen, seen, may_take_less=True),
            *differences_of_templates(recording.template, template),
        ]
        if why and may_differ:
            self._give_up(progress, _in_words(why))
            return returned
        if why:
            replays = progress.replays
            progress.start_anew()
            raise CaptureError(
                f"`{self._name()}` does something else now than its recording, after {replays} replays.",
                saw=_in_words(why),
                expected="the same in each call; this one has run in Python, some before may not have fitted",
                hint="pass to the step as an argument what changes",
            )
        before = recording.replay
        computed = before.computed.confirmed_by(ComputedNumbers.of(before.seen, seen))
        progress.recording = _Recording(Replay(seen, computed), template, now)
        progress.replays += 1
        return returned

    def _run_observed(
        self, progress: _Progress, call: _Call
    ) -> tuple[R, Observed, Template, outside.Snapshot]:
        """Run the step; the snapshot is of what it left, and has the gradients to be found by the next.

        A run that ends halfway leaves other gradients than a whole one: no other is compared with it.
        """
        followed = progress.followed.still_there()
        if len(followed) < len(progress.followed):
            progress.followed, progress.last = followed, None
        before = outside.Snapshot(self.step, call.given, followed)
        optimizers = before.optimizers if progress.counts_on_device else []
        if move_counts(optimizers):
            before = outside.Snapshot(self.step, call.given, followed)
        try:
            with (
                counting_on_the_device(optimizers),
                followed.traced(before.optimizers) as following,
            ):
                returned, seen, result_of = observed(
                    lambda: call.of(self.step), call.tensors, before.gradients, following
                )
        except BaseException:  # an interrupt may be
            progress.start_anew()
            raise
        after = outside.Snapshot(self.step, call.given, followed)
        changed = outside.differences(before, after)
        changed += [f"`{key}` of an optimizer" for key in following.changed]
        if changed:
            seen.objections.append(
                f"it changes what a replay would not change: {_in_words(changed)}"
            )
        after.gradients = before.gradients
        template = template_of(returned, seen, result_of, call.tensors)
        return returned, seen, template, after

    def _name(self) -> str:
        return getattr(self, "__name__", type(self.step).__name__)


def _in_words(reasons: Sequence[str]) -> str:
    left_out = len(reasons) - _MOST_NAMED
    return "; ".join([*reasons[:_MOST_NAMED], *([f"{left_out} more"] if left_out > 0 else [])])


def _is_time_to_check(replays: int) -> bool:
    is_power_of_two = not replays & (replays - 1)
    return replays >= _FIRST_CHECK and is_power_of_two and replays.bit_length() % 2 == 1


def _shared(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    """Which arguments share memory: for each, the first one that it shares it with."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(buffer_of(t)), i) for i, t in enumerate(tensors)])


def _look(x: Any) -> Any:
    """What a recording depends on of an argument."""
    if isinstance(x, torch.Tensor):
        if not is_pjrt(x):
            raise CaptureError(
                "A captured step takes tensors on pjrt.",
                saw=f"a tensor on {x.device}",
                hint='move it before the call: x.to("pjrt"), or torch_pjrt.DeviceLoader for a loader',
            )
        look: tuple[TensorSpec, int] = spec_and_offset(x)
        gradient = x.requires_grad and x.is_leaf and x.grad is not None
        buffer = buffer_of(x)
        marks = x.is_neg(), x.is_conj()
        return (
            look,
            buffer.spec,
            marks,
            x.requires_grad,
            x.is_leaf,
            gradient,
            range_of_mask(buffer),
        )
    hash(x)  # a TypeError here says which type
    return (x.__class__, repr(x) if isinstance(x, (float, complex)) else x)  # zeros have signs
