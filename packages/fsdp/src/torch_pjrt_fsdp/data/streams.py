"""Batches of streams: what can only be read from its beginning, shared out among processes and workers.

A batch of all processes is the next samples of the stream, so the order is the same for any number of
processes and workers. A process reads all that its lanes give, and keeps its rows; what costs time is done by
`transform`, which sees these alone. Workers make whole batches, in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from torch_pjrt_fsdp.data.errors import DataError
from torch_pjrt_fsdp.data.lanes import Lane, alone
from torch_pjrt_fsdp.data.permutation import key_of
from torch_pjrt_fsdp.data.progress import VERSION, Progress, checked
from torch_pjrt_fsdp.data.seeds import generators_kept, seed_generators, seed_of
from torch_pjrt_fsdp.data.shard import DataShard

_KIND = "torch_pjrt_fsdp.GlobalStream"


@dataclass
class Marked:
    """A batch, and the state behind it."""

    batch: Any
    state: dict[str, Any]

    def pin_memory(self) -> Marked:
        """As `DataLoader(pin_memory=True)` asks."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return Marked(pin_memory(self.batch), self.state)


class GlobalStream(IterableDataset[Any]):
    """Batches of a stream, for `DataLoader(stream, batch_size=None)`: of each, this process's rows.

    source      an iterable that gives the same samples in the same order each time: an `IterableDataset`, a
                streaming dataset of Hugging Face, an object that reads files. If it has `set_epoch`, the
                order may depend on that. A list or tuple of such is several lanes: lane l of L gives the l-th
                part of the rows of each batch, and a process reads only those lanes whose rows it has.
    batch_size  of all processes together; processes and lanes must divide it.
    transform   what is done to each sample; only to those that this process and worker give.
    collate     a list of samples to a batch.
    last        what becomes of samples that fill no batch: "drop" leaves them out; "short" (one lane alone)
                gives a smaller batch, whose rows differ by one at most between processes; fewer samples than
                processes are left out.
    shuffle     so many samples of a lane that follow each other are shuffled, and then the next; 0: none.
    repeat      one epoch without end: a lane that ends begins anew, as the source's next epoch.
    batches_per_epoch  an epoch ends with so many batches. Several lanes that several processes read need
                this or `repeat`, as no process sees the end of another's lane.
    seed_samples  `transform` draws the same random numbers for a sample wherever that happens.
    shard       which rows are this process's; None: `DataShard.of_processes()`.

    States can be loaded with other processes, workers and batch sizes. They hold the source's own, if it has
    `state_dict` and `load_state_dict`, or its iterator does; otherwise resuming reads the source again up to
    the position, which is right and takes its time. A process that gets a lane which another one read before
    does so, too, unless it is given the states of all, in a list.

    With several workers, a position is known by `ResumableLoader`, and by torchdata's `StatefulDataLoader`
    for as many workers and processes as before.
    """

    gives: Literal["part"] = "part"

    def __init__(
        self,
        source: Iterable[Any],
        batch_size: int,
        *,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        last: Literal["drop", "short"] = "drop",
        shuffle: int = 0,
        seed: int = 0,
        repeat: bool = False,
        batches_per_epoch: int | None = None,
        seed_samples: bool = False,
        shard: DataShard | None = None,
    ) -> None:
        self.sources = list(source) if isinstance(source, (list, tuple)) else [source]
        self.batch_size = batch_size
        self.transform, self.collate = transform, collate
        self.last, self.shuffle, self.seed = last, shuffle, seed
        self.repeat, self.batches_per_epoch = repeat, batches_per_epoch
        self.seed_samples = seed_samples
        self.shard = shard or DataShard.of_processes()
        self._check()
        self._progress = Progress({"position": 0, "lanes": {}})
        self._marks = False
        self._loop: object = None

    def _check(self) -> None:
        n, world = len(self.sources), self.shard.world_size
        if self.batch_size < 1 or self.batch_size % world or not n or self.batch_size % n:
            raise ValueError(
                f"batch_size is of all processes together, and {world} processes and {n} lanes must divide "
                f"it; saw {self.batch_size}"
            )
        if self.last not in ("drop", "short") or (self.last == "short" and n > 1):
            raise ValueError(
                f'last must be "drop", or "short" for one lane; saw {self.last!r}, {n} lanes'
            )
        if self.repeat and self.batches_per_epoch is not None:
            raise ValueError(
                "a stream that repeats is one epoch without end: batches_per_epoch must be None"
            )
        if n > 1 and world > 1 and not self.repeat and self.batches_per_epoch is None:
            raise ValueError(
                "several lanes that several processes read need `batches_per_epoch` or `repeat=True`: no "
                "process sees the end of another's lane"
            )

    def __len__(self) -> int:
        """`batches_per_epoch`; `TypeError` where that is not given."""
        if self.batches_per_epoch is None:
            raise TypeError(
                "how many batches a stream has is not known before: see `batches_per_epoch`"
            )
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[Any]:
        loop = self._loop = object()
        epoch, place = self._progress.claim()
        return self._give(loop, epoch, place, self._marks)

    @property
    def epoch(self) -> int:
        """The epoch of the loop, or of the next one."""
        return self._progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch; a position in it that was loaded is kept."""
        self._progress.set_epoch(epoch)

    def upcoming(self) -> tuple[int, Any]:
        """Epoch and place at which the next loop begins."""
        return self._progress.peek()

    def claim(self) -> None:
        """A copy of it in another process has begun."""
        self._progress.claim()

    def finish(self) -> None:
        """A copy of it in another process has come to the end of its epoch."""
        self._loop = None
        self._progress.finish()

    @contextmanager
    def marking(self) -> Iterator[None]:
        """A block in which loops begin that give `Marked` batches."""
        self._marks = True
        try:
            yield
        finally:
            self._marks = False

    def state_dict(self) -> dict[str, Any]:
        """What this process has given; in a worker of torchdata's, what the worker has."""
        return self.state_at(self._progress.epoch, self._progress.place)

    def state_at(self, epoch: int, place: dict[str, Any]) -> dict[str, Any]:
        """The state at a place of an epoch."""
        return {
            "kind": _KIND,
            "version": VERSION,
            "n_lanes": len(self.sources),
            "shuffle": self.shuffle,
            "seed": self.seed,
            "repeat": self.repeat,
            "epoch": epoch,
            **place,
        }

    def load_state_dict(self, state: Any) -> None:
        """Go on there with the next loop.

        state  a state, or a list of those of several processes, which must be at one position. Raises
               `DataError` for one of other lanes, or another seed or shuffle.
        """
        same = {
            "n_lanes": len(self.sources),
            "shuffle": self.shuffle,
            "seed": self.seed,
            "repeat": self.repeat,
        }
        states = [
            checked(one, _KIND, same) for one in (state if isinstance(state, list) else [state])
        ]
        if len({(one["epoch"], one["position"]) for one in states}) != 1:
            raise DataError(
                "These states were not saved at one moment.",
                saw=", ".join(f"epoch {s['epoch']} position {s['position']}" for s in states),
                expected="at least one, all of them after the same batch",
            )
        place = {"position": states[0]["position"], "lanes": {}}
        for one in states:
            place["lanes"].update(one["lanes"])
        if "turn" in states[0] and get_worker_info() is not None:
            place["turn"] = states[0]["turn"]
        self._progress.load(states[0]["epoch"], place)
        self._loop = None

    def _give(self, loop: object, epoch: int, place: dict[str, Any], marks: bool) -> Iterator[Any]:
        info = get_worker_info()
        worker, n_workers = (0, 1) if info is None else (info.id, info.num_workers)
        per_lane = self.batch_size // len(self.sources)
        own = self.shard.rows(self.batch_size)
        lanes = self._lanes(own, per_lane)
        with alone():
            for number, lane in lanes.items():
                lane.begin(epoch, place["position"], place["lanes"].get(number))
        position, turn = place["position"], place.get("turn", 0)
        n_positions = None if self.batches_per_epoch is None else self.batches_per_epoch * per_lane
        while n_positions is None or position + per_lane <= n_positions:
            is_own = turn % n_workers == worker
            with alone():
                samples, n_read = self._read(lanes, own, per_lane, position, is_own)
                ended = n_read < per_lane
                position += n_read
                if is_own:
                    place = {
                        "position": position,
                        "lanes": {i: x.state() for i, x in lanes.items()},
                    }
                    if info is not None:
                        place["turn"] = turn + 1
            if ended and n_positions is not None:
                raise DataError(
                    "A lane has ended before the epoch.",
                    saw=f"{position} samples of a lane",
                    expected=f"{n_positions}, for batches_per_epoch={self.batches_per_epoch}",
                )
            if ended and (self.last == "drop" or n_read < self.shard.world_size):
                break
            if is_own:
                if self._loop is loop:
                    self._progress.place = place
                batch = self._made(samples, epoch)
                yield Marked(batch, self.state_at(epoch, _without_turn(place))) if marks else batch
                del batch
            if ended:
                break
            turn += 1
        if self._loop is loop:
            self._progress.finish()

    def _lanes(self, own: slice, per_lane: int) -> dict[int, Lane]:
        """Those that have rows of this process."""
        return {
            i: Lane(source, i, self.seed, max(self.shuffle, 1), self.repeat)
            for i, source in enumerate(self.sources)
            if i * per_lane < own.stop and (i + 1) * per_lane > own.start
        }

    def _read(
        self, lanes: dict[int, Lane], own: slice, per_lane: int, position: int, keep: bool
    ) -> tuple[list[tuple[int, int, Any]], int]:
        """This process's samples of a batch with lane and number, and how many the shortest lane gave."""
        kept: list[tuple[int, int, Any]] = []
        needs_all = (
            self.last == "short"
        )  # which rows are its own is known when the last one was read
        shortest = per_lane
        for number, lane in lanes.items():
            samples = lane.take(per_lane)
            shortest = min(shortest, len(samples))
            if keep:
                first = 0 if needs_all else max(own.start - number * per_lane, 0)
                end = per_lane if needs_all else own.stop - number * per_lane
                numbered = enumerate(samples[first:end], position + first)
                kept += [(number, i, sample) for i, sample in numbered]
        return kept[self.shard.rows(shortest)] if needs_all else kept, shortest

    def _made(self, samples: list[tuple[int, int, Any]], epoch: int) -> Any:
        if self.transform is None:
            return self.collate([sample for _, _, sample in samples])
        if not self.seed_samples:
            return self.collate([self.transform(sample) for _, _, sample in samples])
        made = []
        with generators_kept():
            for lane, number, sample in samples:
                seed_generators(seed_of(key_of(self.seed, lane), epoch, number))
                made.append(self.transform(sample))
        return self.collate(made)


def _without_turn(place: dict[str, Any]) -> dict[str, Any]:
    return {"position": place["position"], "lanes": place["lanes"]}
