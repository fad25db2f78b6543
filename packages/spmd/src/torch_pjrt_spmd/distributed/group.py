"""A process group on the device: who is in it, and how its ranks exchange what tensors hold."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import cache, lru_cache, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import (
    JointOp,
    Tape,
    buffer_of,
    counters,
    current,
    intern,
    record,
    run_pending,
    store,
    upload,
    value_of,
)
from torch_pjrt.plugin import Slot, TensorSpec, contiguous_spec
from torch_pjrt_spmd.distributed.board import WAITING, Board
from torch_pjrt_spmd.distributed.grids import follows, forget_grids, joint_for
from torch_pjrt_spmd.distributed.health import health
from torch_pjrt_spmd.distributed.lines import Line
from torch_pjrt_spmd.distributed.peers import Peers
from torch_pjrt_spmd.distributed.settings import fuses_collectives
from torch_pjrt_spmd.distributed.together import Ranks

Function = Callable[..., Sequence[Any]]

# A collective after so few values does not wait for more: others may wait for it.
_FEW = 4
# Unless more is sure to come, where a module or backward calls it; or so often others that waited came behind
# one like it, and no read between: it is the first of a step.
_OFTEN = 2


class Group:
    """The ranks of a process group, from the view of one.

    name    PyTorch's, of which no other group of the process has the same.
    line    where its ranks lie among those of the run (`grids.py`).
    rank    this process's, in the group; size: of the group.
    host    a gloo group of the same ranks, for what goes over the host's memory.
    to_itself   what this rank has sent to itself and not yet received, by tags.
    """

    def __init__(self, name: str, peers: Peers, host: Any, line: Line) -> None:
        self.name = name
        self.line = line
        self.rank = peers.rank
        self.size = len(peers.ranks)
        self.host = host
        self.is_named = False  # whether PyTorch's group knows that this is its default backend
        self.to_itself: defaultdict[int, deque[list[torch.Tensor]]] = defaultdict(deque)
        self.peers = peers
        self.joint = Ranks(name, peers)
        self.joint.groups[line] = self
        self.pending: tuple[Tape, float] | None = None  # with collectives, and since when
        self._at_once: set[Any] = (
            set()
        )  # what has not waited, since something was read or run otherwise
        self._by_then = (0, 0)
        self._began_steps: Counter[Any] = Counter()

    def run(
        self,
        function: Function,
        of: tuple[Any, ...],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor | None],
    ) -> None:
        """Record a collective, which writes what it gives into the outputs.

        function  one of `collectives.py`; `of` are its first arguments, alike on each rank.
        outputs   of the results' shapes; None for what this rank does not want.

        What was recorded runs with it, later, where the group's ranks have recorded the same; else it runs
        between what was recorded before and after. Where it runs now and fails, the outputs are as before.
        """
        values = [value_of(x) for x in inputs]
        tape = current()
        if tape.nested:  # also where nothing is on it yet
            raise LoweringError(
                "A collective is no part of a recorded graph: processes agree on it when it runs.",
                saw=f"{function.__name__} of {[str(value.spec) for value in values]}",
                expected="a collective between graphs, as torch.compile leaves it",
            )
        specs = tuple([value.spec for value in values])
        outs = tuple(_specs_of(inputs, outputs))
        slots = [Slot(i) for i in range(len(specs))]
        operator = _operator(function, self.line, of)
        signature = intern(operator, (slots,), {}, specs, outs, returns="list")
        joint = joint_for(tape, self, signature) if fuses_collectives() else None
        if joint is None:
            before = tape
            run_pending(tape, "a collective")
            tape = current()
            follows(tape, before)
            joint = joint_for(tape, self, signature) or self.joint
        is_early = self._is_to_run_at_once(tape, signature)
        is_now = is_early or not fuses_collectives()
        contents = _Contents(outputs) if is_now else None
        tape.joint = joint
        made = record(signature, values, ())
        tape = made[0].tape
        assert tape is not None
        if tape.joint is None:  # another thread has run the one before
            tape.joint = self.joint
        if self.pending is None or self.pending[0] is not tape:
            self.pending = tape, time.monotonic()
        for tensor, value in zip(outputs, made, strict=True):
            if tensor is not None:
                store(tensor, value)
            else:
                tape.kept.append(value)  # so that all ranks make the same program
        if contents is not None:
            try:
                run_pending(tape, "a collective")
            except BaseException:
                contents.put_back()
                raise
        if is_early:
            self._at_once.add(signature)
            self._by_then = _syncs_and_reads()

    def _is_to_run_at_once(self, tape: Tape, signature: Any) -> bool:
        """Whether a collective comes after next to nothing, and is not known to begin a step."""
        if self._at_once and self._by_then != _syncs_and_reads():
            self._at_once.clear()
        if tape.joint is None and tape.size <= _FEW:
            return self._began_steps[signature] < _OFTEN and not _is_part_of_a_pass()
        self._began_steps.update(self._at_once)
        self._at_once.clear()
        return False

    def flush(self) -> None:
        """Have done what was recorded with collectives: the others may wait for it."""
        if self.pending is None:
            return
        tape, _ = self.pending
        run_pending(tape, "what the ranks do by way of the host")
        if self.pending is not None and self.pending[0] is tape:  # else recorded meanwhile
            self.pending = None

    def exchange_on_host(self, work: Any, what: str) -> None:
        """Wait for what the host's group does: `what`, in words."""
        self.flush()
        own = health()
        try:
            with own.waiting(what, self.peers.ranks) if own is not None else nullcontext():
                work.wait(timedelta(seconds=self.peers.timeout))
        except RuntimeError as error:
            raise self.peers.lost(what, error) from error


class _Contents:
    """What tensors hold before a collective that is to run at its call."""

    def __init__(self, tensors: Sequence[torch.Tensor | None]) -> None:
        buffers = [buffer_of(x) for x in tensors if x is not None]
        self._before = [(buffer, buffer.value, buffer.blank, buffer.viewed) for buffer in buffers]

    def put_back(self) -> None:
        """Have the tensors hold that again."""
        for buffer, *before in self._before:
            buffer.value, buffer.blank, buffer.viewed = before


_CALL_OF_A_MODULE = torch.nn.Module._call_impl.__code__


def _is_part_of_a_pass() -> bool:
    """Whether it is called within a forward or a backward: by FSDP or DDP, say, or by the user's layer."""
    if torch._C._current_graph_task_id() != -1:
        return True
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _CALL_OF_A_MODULE:
        frame = frame.f_back
    return frame is not None


def _syncs_and_reads() -> tuple[int, int]:
    return counters.syncs.total(), counters.downloads


@lru_cache(maxsize=4096)
def _operator(function: Function, line: Line, of: tuple[Any, ...]) -> JointOp:
    """The one operator of a collective of groups that lie so."""
    name = " ".join(map(str, (function.__name__, *of)))
    return JointOp(name, function, (line, *of))


def _specs_of(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor | None]
) -> Iterator[TensorSpec]:
    """What the results look like; those that a rank does not want, as the inputs that they are made of."""
    for i, output in enumerate(outputs):
        like = output if output is not None else inputs[i * len(inputs) // len(outputs)]
        yield contiguous_spec(like.shape, like.dtype)


def fill(tensor: torch.Tensor, given: torch.Tensor) -> None:
    """Have a tensor hold what is in a CPU tensor of its shape and dtype, that nobody writes to any more."""
    store(tensor, upload(given, copy=False))


# How long a collective may be pending, in seconds, before it is looked whether others wait for it.
_LONG = 3.0


def run_what_others_wait_for(board: Board) -> None:
    """Run what has long been pending, by another thread, where ranks of its group wait for this one.

    This one may wait for them in another way, by a collective of the host say.
    """
    for group in list(_groups.values()):
        pending = group.pending
        if pending is None or time.monotonic() - pending[1] < _LONG:
            continue
        if pending[0].ended:
            continue
        joint = pending[0].joint
        ranks = group.peers.ranks if joint is None else joint.ranks
        own = group.peers.ranks[group.rank]
        board.look(set(ranks) - {own})
        posts = [board.seen[rank].post for rank in ranks if rank != own and rank in board.seen]
        if any(p.phase == WAITING and own in p.ranks and p.since_s > _LONG / 2 for p in posts):
            group.pending = pending[0], time.monotonic()
            threading.Thread(target=_run_for_others, args=(group,), daemon=True).start()


def _run_for_others(group: Group) -> None:
    try:
        group.flush()
    except Exception as error:  # who reads what is lost is told
        if (own := health()) is not None:
            own.note(error)


def flush_all() -> None:
    """Have done what was recorded with collectives of any group that knows what its ranks do."""
    for group in list(_groups.values()):
        if not group.joint.was_interrupted:
            group.flush()


_groups: dict[str, Group] = {}
_made: Counter[str] = Counter()


def add(group: Group) -> None:
    """Have the kernels find it by its name. Groups that the user has destroyed are forgotten."""
    known = set(dist.distributed_c10d._world.pg_names.values())
    for name in [name for name in _groups if name not in known]:
        del _groups[name]
        forget_grids()
    _groups[group.name] = group
    for one in _groups.values():
        one.peers.knocks = len(_groups) > 1
    if (own := health()) is not None:
        own.look_after = run_what_others_wait_for
    _flush_at_the_end()


@cache
def _flush_at_the_end() -> None:
    """Others may wait for what is pending where this process, or its group, ends."""
    destroy = distributed_c10d.destroy_process_group

    @wraps(destroy)
    def flush_and_destroy(*args: Any, **kwargs: Any) -> None:
        try:
            flush_all()
        finally:
            destroy(*args, **kwargs)

    distributed_c10d.destroy_process_group = dist.destroy_process_group = flush_and_destroy
    atexit.register(_flush_quietly)


def _flush_quietly() -> None:
    """At the end of the process; one that ends by an error does not wait for others."""
    if (own := health()) is None or not own.has_failed:
        with suppress(Exception):
            flush_all()


def generation(name: str) -> int:
    """How many groups of that name this process has made before: the store still has what they said."""
    _made[name] += 1
    return _made[name] - 1


class NotOurs(LookupError):
    """A kernel is given a group without the backend `pjrt`."""


def group_of(process_group: Any) -> Group:
    """The group of what a kernel is given. Raises `NotOurs`."""
    found = dist.ProcessGroup.unbox(process_group)
    group = _groups.get(found.group_name)
    if group is None:
        raise NotOurs(found.group_name)
    if not group.is_named:
        # A group of several backends has none by default, or one that it lacks: DDP asks for it.
        found._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        group.is_named = True
    return group


def is_on_device(process_group: Any) -> bool:
    """Whether it has the backend `pjrt`."""
    return process_group.group_name in _groups


def group_of_ranks(process_group: Any = None) -> Group:
    """The group of what `dist.new_group` has given; of the default one, where none is named."""
    found = process_group or dist.distributed_c10d._get_default_group()
    return _groups[found.group_name]
