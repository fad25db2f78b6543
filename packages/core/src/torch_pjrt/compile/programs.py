"""Programs and their cache: the same code, outputs and donations run the same compiled program.

Python numbers of the calls are constants of a program at first. When the same code comes back with
other numbers, those that differ become inputs: the second variant is compiled, and then reused
whatever they are.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import starmap
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from torch_pjrt import dtypes
from torch_pjrt.client import memory, partition
from torch_pjrt.client.client import LAUNCH_ERRORS, client
from torch_pjrt.client.shardings import Sharding, stack_of
from torch_pjrt.client.stack_elements import gathered
from torch_pjrt.client.wait import remember, wait
from torch_pjrt.compile import saved
from torch_pjrt.compile.build import function_of
from torch_pjrt.compile.eviction import Eviction
from torch_pjrt.compile.hooks import hooks
from torch_pjrt.compile.joint import Compiled, Joint, digest_of
from torch_pjrt.compile.likely_inputs import forget as forget_numbers
from torch_pjrt.compile.likely_inputs import likely_inputs
from torch_pjrt.compile.numbers import NumberHistory, NumberPlan, all_numbers
from torch_pjrt.compile.partitioned import aliased, chips_of, of_outputs, spread_as_asked, through
from torch_pjrt.compile.precision import in_force
from torch_pjrt.compile.sizes import may_need
from torch_pjrt.graph.boundary import Boundary, with_stacks
from torch_pjrt.graph.graph import Graph, Node, graph_of, specs_of_arrays, with_inputs
from torch_pjrt.graph.loop import loops_of
from torch_pjrt.observe.compilations import (
    Compilation,
    check_limit,
    compiling,
    forget_known,
    note_lines,
)
from torch_pjrt.observe.counters import counters
from torch_pjrt.observe.dumps import begin as begin_dump
from torch_pjrt.passes.runner import run_passes
from torch_pjrt.plugin.jax_backend import call_in_c
from torch_pjrt.session import session
from torch_pjrt.settings import settings

if TYPE_CHECKING:
    from torch_pjrt.graph.tape import Tape, Value

_MOST_VARIANTS = 2
# Launches that copy what is held, before a program is compiled that leaves it alone.
_MOST_COPIED = 8


class Program:
    """One compiled program.

    recorded   the graph as it came from the tape.
    donated    the inputs (negative numbers) whose memory it takes.
    outputs    the tape's numbers of the values it returns, in order.
    plan       which numbers of the tape are inputs.
    shardings  where its inputs lie, as they were recorded; empty where no package spreads arrays.
    chips      on which it runs; none: on the client's.
    boundary   which inputs and outputs it takes and gives as stacks.
    joint      the processes that run it together, if it has operators that others take part in; `proposal`
               is what they are asked with.
    launches, resets, needs    kept by `client/memory.py`.
    numbers        of the launch that is being made: its last arguments, where hooks look at launches.
    used           grows from launch to launch of any program.
    compilation    what it cost, why it was needed, how often it ran.

        >>> def after(program):
        ...     print([node.op.name() for node in program.recorded.nodes], program.outputs)
        >>> x = torch.ones(2, device="pjrt")
        >>> torch_pjrt.sync()
        >>> with add_program_hooks(after_launch=after):
        ...     x.sin().tolist()
        ['aten::sin'] (0,)
        [0.84147..., 0.84147...]
    """

    compilation: Compilation
    proposal: tuple[str, Node]

    def __init__(
        self,
        recorded: Graph,
        compiled: Any,
        outputs: tuple[int, ...],
        donated: tuple[int, ...],
        plan: NumberPlan,
        boundary: Boundary,
        shardings: Sequence[Sharding] = (),
        chips: Sequence[Any] = (),
    ) -> None:
        self.joint: Joint | None = None
        self.recorded = recorded
        self.compiled = compiled
        self.boundary = boundary
        self.outputs = outputs
        self.donated = donated
        self.plan = plan
        self.shardings = shardings
        self.chips = chips
        self.launches = self.resets = self.used = 0
        self.needs: int | None = None
        self.numbers: Sequence[np.ndarray] = ()
        self._call: Callable[..., Any] | None = None  # the compiled program, once it has run
        self._may_not_fit = may_need(recorded) > memory.free_bytes()
        self._all_needs: int | None = None

    @property
    def graph(self) -> Graph:
        """After the passes, as it is lowered. They run again: a program may keep thousands of nodes."""
        return run_passes(partition.with_own(client().passes, self.shardings), self.recorded)

    def run(self, tape: Tape, reusable: Mapping[int, int], box: list[Any]) -> None:
        """Launch it on the tape's inputs. An input that is donated but still held is copied first.

        reusable  the inputs (negative numbers) whose memory it may take.
        box       gets what it gave, as one item.
        """
        kept: Collection[int] = ()
        if self.donated != tuple(reusable):
            kept = frozenset([-n - 1 for n in self.donated if n not in reusable])
        arrays: list[Any] = [value.array for value in tape.inputs]
        counters.operators += len(self.recorded.nodes)
        self._launch_on(arrays, self.plan.arguments(tape), box, kept, tape.inputs)

    def launch(
        self,
        arrays: list[Any],
        numbers: Sequence[np.ndarray],
        box: list[Any],
        kept: Collection[int] = (),
        values: Sequence[Value | None] | None = None,
    ) -> None:
        """Launch it on these arrays, of which it takes those of `donated`, and numbers.

        `box` gets one item, what was given, in the instant in which the memory is taken. Whatever is raised:
        where the box is empty the program has not run. `kept` are positions among `arrays` that are copied
        before they are taken; `values` hold the arrays, and may be told to hold elements of a stack instead.
        """
        if self.joint is not None:
            self.joint.replaying(self)
        self._launch_on(arrays, numbers, box, kept, values)

    def _launch_on(
        self,
        arrays: list[Any],
        numbers: Sequence[np.ndarray],
        box: list[Any],
        kept: Collection[int],
        values: Sequence[Value | None] | None,
    ) -> None:
        if hooks.before_launch:
            self.numbers = numbers
            for hook in hooks.before_launch:
                hook(self)
        with counters.timed("launch_s"), dtypes.x64():
            try:
                if self._may_not_fit and not self._fits():
                    self._try(arrays, numbers, box)
                else:
                    self._launch((*gathered(self.boundary, arrays, kept, values), *numbers), box)
            except LAUNCH_ERRORS as error:
                memory.raise_if_exhausted(error, "launching a program")
                if self.joint is not None:
                    raise self.joint.explained(error) from error
                raise
        self.used = next(_programs.launches)
        memory.launched(self)
        if box[0]:
            remember(box[0])
        self.compilation.runs += 1
        counters.programs_run += 1
        counters.donated += len(self.donated)
        for hook in hooks.after_launch:
            hook(self)

    def _launch(self, arguments: tuple[Any, ...], box: list[Any]) -> None:
        """Launch it, and put what it gives into the box, as one; `x64` has handlers of signals wait.

        Where another thread raises an exception here, too: from the second launch on both are one call of a
        function in C.
        """
        if self._call is None:
            box.append(self.compiled(*arguments))
            self._call = call_in_c(self.compiled)
        else:
            box.extend(starmap(self._call, (arguments,)))

    def _try(self, arrays: list[Any], numbers: Sequence[np.ndarray], box: list[Any]) -> None:
        """Launch it without taking any memory, and see whether it runs."""
        kept = frozenset([-n - 1 for n in self.donated])
        results = self.compiled(*gathered(self.boundary, arrays, kept), *numbers)
        for array in results:
            array.block_until_ready()
        box.append(results)

    def _fits(self) -> bool:
        """Whether there is room for what it needs beside its inputs. Asked where that may be much."""
        if self._all_needs is None:
            self._all_needs = memory.all_needs(self.compiled)
        # What still runs may give back what it needs, and so may what nobody can reach any more.
        for give_back in (wait, gc.collect):
            if self._all_needs <= memory.free_bytes():
                return True
            give_back()
        return self._all_needs <= memory.free_bytes()


class Entry:
    """The programs of one code and one set of outputs.

    variants   by what they take of their inputs' memory.
    n_copied   how often another one was asked for, and one that takes more has run with copies.
    """

    def __init__(self, tape: Tape) -> None:
        self.history = NumberHistory(tape)
        ints, floats = likely_inputs(tape) if tape.joint is None else all_numbers(tape)
        self.plan = NumberPlan(tape, np.array(ints, np.int64), np.array(floats, np.int64))
        self.variants: dict[tuple[int, ...], Program] = {}
        self.n_copied = 0

    def with_copies(self, donated: tuple[int, ...]) -> Program | None:
        """One that takes more than this, which is then copied first: for a step that is an exception.

        It needs the memory that a program which takes less would: an input that stays beside its result.
        """
        if self.n_copied >= _MOST_COPIED:
            return None
        found = (p for taken, p in self.variants.items() if set(taken) > set(donated))
        program = next(found, None)
        self.n_copied += program is not None
        return program

    @property
    def used(self) -> int:
        """When one of its programs was launched last; 0 if none was."""
        return max((program.used for program in self.variants.values()), default=0)


class _Programs:
    """The cache.

    entries    by all that tells programs apart, see `program_for`.
    eviction   which of them are given back.
    launches   counts those of all programs.
    """

    def __init__(self) -> None:
        self.entries: dict[Any, Entry] = {}
        self.eviction = Eviction(self.entries)
        self.launches = itertools.count(1)

    def forget(self) -> None:
        self.entries.clear()
        self.eviction.given_back.clear()
        self.eviction.count_again()


_programs = session.own("programs", _Programs())
_entries, _eviction = _programs.entries, _programs.eviction


def program_for(
    tape: Tape, live: tuple[int, ...], reusable: Mapping[int, int], cause: object
) -> Program:
    """The program of this tape, from the cache or compiled now; `cause` says as text why there is a sync.

    Raises `TooManyPrograms` where one that is not known would be one too many.
    """
    key = key_of(tape, live)
    shardings = key[-1]
    entry = _entries.get(key)
    if entry is None:
        if key not in _eviction.given_back:
            check_limit(len(_entries) + len(_eviction.given_back), tape, key, reusable)
        entry = _entries[key] = Entry(tape)
    elif not entry.plan.fits(tape):
        entry.plan = entry.plan.widened(tape, entry.history)
        entry.variants.clear()
    donated = tuple(reusable)
    program = entry.variants.get(donated)
    if program is None and tape.joint is None:
        program = entry.with_copies(donated)
    if program is None and len(entry.variants) >= _MOST_VARIANTS and tape.joint is None:
        least, *_, most = sorted(entry.variants, key=len)
        if len(donated) > len(most):  # what held the inputs is gone: worth a program, once
            del entry.variants[least]
        else:
            program = next(iter(entry.variants.values()))
    if program is None:
        _eviction.make()
        _entries[key] = entry
        with compiling(tape, key, donated, entry.plan.changing, str(cause)) as compilation:
            program = _compiled(tape, live, reusable, entry.plan, shardings)
        program.compilation = compilation
        if tape.joint is not None and (proposal := digest_of(key, tape, live, reusable)):
            program.proposal = proposal
        entry.variants[donated] = program
        _eviction.take(key, program)
        for hook in hooks.after_compile:
            hook(program)
    elif tape.code.__class__ is not list:
        note_lines(tape, key)
    if tape.joint is not None:
        program.joint = tape.joint  # of several with one name, that which asks the others now
    return program


def key_of(tape: Tape, live: tuple[int, ...]) -> tuple[Any, ...]:
    """What the program of these values of a tape is known by; last, where the tape's inputs lie."""
    shared = (
        tuple(tape.code),
        live,
        specs_of_arrays(tape.inputs),
        len(tape.draws),
        in_force(),
        settings.roll_layers,
        tuple(settings.compile_options.items()),
        tape.joint and tape.joint.name,
    )
    shardings = spread_as_asked(tape, live, shared)
    return (*shared, partition.own_passes(shardings), shardings)


def is_compiled(key: tuple[Any, ...], donated: tuple[int, ...]) -> bool:
    """Whether the program with this key, which takes these inputs, is in the cache."""
    entry = _entries.get(key)
    return entry is not None and donated in entry.variants


def forget_programs() -> None:
    """Empty the cache. What is compiled again is counted again.

    >>> forget_programs()
    """
    _programs.forget()
    forget_known()
    forget_numbers()


def programs_in_memory() -> list[Program]:
    """Those of the cache, the oldest first."""
    found = [p for entry in list(_entries.values()) for p in list(entry.variants.values())]
    return sorted(found, key=lambda program: program.compilation.number)


@contextmanager
def anew() -> Iterator[None]:
    """Within the block every program is compiled anew; after it, those from before are known again."""
    kept = dict(_entries)
    _entries.clear()
    try:
        yield
    finally:
        _entries.update(kept)
        _eviction.count_again()


def shapes_of_arguments(tape: Tape, plan: NumberPlan) -> list[jax.ShapeDtypeStruct]:
    """What the arguments of the tape's program look like: its inputs, then its numbers."""
    arrays = [value.array for value in tape.inputs]
    return [
        *(
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
            for a in arrays
            if a is not None
        ),
        *(jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=True) for a in plan.arguments(tape)),
    ]


def _shapes_of_stacks(
    boundary: Boundary, shapes: Sequence[jax.ShapeDtypeStruct]
) -> list[jax.ShapeDtypeStruct]:
    """What the arguments look like as the program takes them."""
    taken: list[jax.ShapeDtypeStruct] = []
    n = 0
    for position in boundary.inputs:
        if isinstance(position, int):
            taken.append(shapes[position])
            n += 1
        else:
            first = shapes[position[0]]
            shape = (len(position), *first.shape)
            taken.append(first.update(shape=shape, sharding=stack_of(first.sharding)))
            n += len(position)
    return [*taken, *shapes[n:]]


def _compiled(
    tape: Tape,
    live: tuple[int, ...],
    reusable: Mapping[int, int],
    plan: NumberPlan,
    shardings: Sequence[Sharding],
) -> Program:
    """Outputs that reuse an input's memory come first, in the inputs' order: JAX pairs them in order."""
    outputs = [*reusable.values(), *sorted(set(live) - set(reusable.values()))]
    recorded = with_inputs(graph_of(tape, outputs), plan.changing)
    for hook in hooks.before_compile:
        hook(recorded)
    joint = tape.joint
    given = None if joint else of_outputs(recorded, tape, outputs, reusable, shardings)
    digest = saved.digest_of(recorded, tape, tuple(reusable), given)
    chips = () if joint else chips_of(shardings, given)
    found = saved.load(digest, joint.chips if joint else chips) if digest is not None else None
    if found is None:
        start = time.perf_counter()
        found, lowered = _compile(recorded, tape, reusable, plan, shardings, given)
        if digest is not None:
            seconds = time.perf_counter() - start
            saved.save(digest, *found, lowered, len(recorded.nodes), seconds)
    compiled, boundary = found
    if joint is not None:
        compiled = Compiled(compiled, joint)
    return Program(
        recorded, compiled, tuple(outputs), tuple(reusable), plan, boundary, shardings, chips
    )


def _compile(
    recorded: Graph,
    tape: Tape,
    reusable: Mapping[int, int],
    plan: NumberPlan,
    shardings: Sequence[Sharding],
    given: Sequence[Sharding | None] | None,
) -> tuple[tuple[Any, Boundary], Any]:
    """The graph compiled for arrays like the tape's inputs, and how they go in; what JAX lowered."""
    pairs = aliased(reusable, shardings, given)
    graph, boundary = with_stacks(
        run_passes(partition.with_own(client().passes, shardings), recorded), pairs
    )
    dump = begin_dump(recorded, graph)
    where = through(boundary, given)
    function = function_of(graph, client().lowerings, plan, len(tape.draws), where)
    arguments = _shapes_of_stacks(boundary, shapes_of_arguments(tape, plan))
    if (joint := tape.joint) is not None:
        function, where = joint.mapped(function), joint.sharding
        arguments = [argument.update(sharding=where) for argument in arguments]
    with dtypes.x64():
        compiled, lowered = client().compile(function, arguments, boundary.donated, dump, where)
    counters.programs_compiled += 1
    counters.loops += sum(1 for loop in loops_of(graph) if not loop.vectorized)
    return (compiled, boundary), lowered
