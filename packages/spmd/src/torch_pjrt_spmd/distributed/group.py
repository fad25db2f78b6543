"""A process group on the device: who is in it, and how its ranks exchange what tensors hold."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_pjrt.extend import Value, array_of, store, upload, value_of
from torch_pjrt.plugin import contiguous_spec
from torch_pjrt_spmd.distributed import findings
from torch_pjrt_spmd.distributed.errors import PeerError
from torch_pjrt_spmd.distributed.health import health
from torch_pjrt_spmd.distributed.joining import chip_of
from torch_pjrt_spmd.distributed.peers import Peers, lost_error
from torch_pjrt_spmd.distributed.programs import Chips

Function = Callable[..., Sequence[Any]]


class Group:
    """The ranks of a process group, from the view of one.

    name    PyTorch's, of which no other group of the process has the same.
    rank    this process's, in the group; size: of the group.
    host    a gloo group of the same ranks, for what goes over the host's memory.
    to_itself   what this rank has sent to itself and not yet received, by tags.
    """

    def __init__(
        self, name: str, kv: Any, ranks: Sequence[int], rank: int, host: Any, timeout: float
    ) -> None:
        self.name = name
        self.rank = rank
        self.size = len(ranks)
        self.host = host
        self.is_named = False  # whether PyTorch's group knows that this is its default backend
        self.to_itself: defaultdict[int, deque[list[torch.Tensor]]] = defaultdict(deque)
        self.peers = Peers(kv, ranks, rank, timeout)
        self._chips = Chips([chip_of(r) for r in ranks])

    def run(
        self,
        what: tuple[Any, ...],
        function: Function,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor | None],
    ) -> None:
        """Launch a collective once all ranks are about to, and write what it gives into the outputs.

        what      its name and all that it depends on beside the inputs, as plain values, alike on each rank.
        function  of the inputs' arrays, under `shard_map`; gives as many arrays as there are outputs.
        outputs   of the arrays' shapes; None for what this rank does not want.
        """
        arrays = [array_of(value_of(x)) for x in inputs]
        shapes = ", ".join(f"{x.dtype} {list(x.shape)}" for x in inputs)
        self.peers.agree(f"{self.name}: {' '.join(map(str, what))} of {shapes or 'nothing'}")
        try:
            results = self._chips.run(what, function, arrays)
        except (RuntimeError, ValueError) as error:
            raise self._lost(f"{what[0]} of {shapes}", error) from error
        finally:
            if (own := health()) is not None:
                own.left()
        for tensor, array in zip(outputs, results, strict=True):
            if tensor is not None:
                write(tensor, array)

    def exchange_on_host(self, work: Any, what: str) -> None:
        """Wait for what the host's group does: `what`, in words."""
        own = health()
        try:
            with own.waiting(what, self.peers.ranks) if own is not None else nullcontext():
                work.wait(timedelta(seconds=self.peers.timeout))
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _lost(self, call: str, error: Exception) -> PeerError:
        """What is raised where a collective has failed: it says which rank is gone, if that can be known."""
        said, own = str(error).partition("\n")[0], health()
        within = (
            0.5 if "imed out" in said else 3.0
        )  # after a time limit, it has been looked for long
        if own is not None and (lost := own.find_lost(self.peers.ranks, within)):
            return lost_error(lost, own.rank, f"{call}, which failed: {said}")
        others = [rank for rank in self.peers.ranks if rank != self.peers.ranks[self.rank]]
        late = findings.late(own.board.seen, others) if own is not None else []
        return PeerError(
            f"What ranks do together failed: {call}.",
            ranks=[one.rank for one in late],
            saw="\n    ".join([said, *(one.text for one in late)]),
            hint="a rank is gone, or did not call it within TORCH_PJRT_PEER_TIMEOUT seconds",
        )


def write(tensor: torch.Tensor, array: Any) -> None:
    """Have a tensor hold what is in an array of its shape."""
    store(tensor, Value.of_array(contiguous_spec(tensor.shape, tensor.dtype), array))


def fill(tensor: torch.Tensor, given: torch.Tensor) -> None:
    """Have a tensor hold what is in a CPU tensor of its shape and dtype, that nobody writes to any more."""
    store(tensor, upload(given, copy=False))


_groups: dict[str, Group] = {}
_made: Counter[str] = Counter()


def add(group: Group) -> None:
    """Have the kernels find it by its name. Groups that the user has destroyed are forgotten."""
    known = set(dist.distributed_c10d._world.pg_names.values())
    for name in [name for name in _groups if name not in known]:
        del _groups[name]
    _groups[group.name] = group


def generation(name: str) -> int:
    """How many groups of that name this process has made before: the store still has what they said."""
    _made[name] += 1
    return _made[name] - 1


def group_of(process_group: Any) -> Group:
    """The group of what a kernel is given."""
    found = dist.ProcessGroup.unbox(process_group)
    group = _groups[found.group_name]
    if not group.is_named:
        # A group of several backends has none by default, or one that it lacks: DDP asks for it.
        found._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        group.is_named = True
    return group


def group_of_ranks(process_group: Any = None) -> Group:
    """The group of what `dist.new_group` has given; of the default one, where none is named."""
    found = process_group or dist.distributed_c10d._get_default_group()
    return _groups[found.group_name]
