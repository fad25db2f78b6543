"""Batches of indices, in an order that depends on seed and epoch alone, from any position on.

An epoch is one order of all samples. A batch is the next of it, whatever the number of processes, and each
process takes its rows of it. So a position, which is how many samples all processes have taken together, says
all there is to say of the past.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized
from itertools import count, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from torch_pjrt_fsdp.data.budget import Budget
from torch_pjrt_fsdp.data.errors import DataError
from torch_pjrt_fsdp.data.permutation import Permutation
from torch_pjrt_fsdp.data.progress import VERSION, Progress, checked
from torch_pjrt_fsdp.data.seeds import SeededIndex, seed_of
from torch_pjrt_fsdp.data.shard import DataShard

_AT_ONCE = 4096  # so many indices are computed together, where batches are smaller

Last = Literal["drop", "pad", "short"]
_KIND = "torch_pjrt_fsdp.GlobalBatchSampler"


class GlobalBatchSampler(Sampler[list[int]]):
    """For `DataLoader(dataset, batch_sampler=...)`: this process's rows of each batch of all processes.

    data        the dataset, or how many samples it has.
    batch_size  of all processes together, which they must divide; or a `Budget`, for batches that vary.
    shuffle     in the order `Permutation(size, seed, epoch)`, which takes no memory; False: as they are.
    last        what becomes of samples at the end that fill no batch. "drop": this epoch is without them.
                "pad": the first of the epoch are given again. "short": a smaller batch, of which processes
                get rows that differ by one at most; fewer samples than processes are left out.
    shard       which rows are this process's; None: `DataShard.of_processes()`.
    seed_samples  indices carry a seed each, for `SeededSamples`.

    `set_epoch(epoch)` chooses the epoch; without it each loop is the next one. `state_dict()` says which
    samples were drawn, which a `DataLoader` does ahead: `ResumableLoader` and torchdata's
    `StatefulDataLoader` have the state of what was received. A state can be loaded with another batch size,
    another `last` and other processes: no sample of the epoch is lost or repeated.
    """

    gives: Literal["part"] = "part"  # for `torch_pjrt_spmd.DeviceLoader`: not whole batches

    def __init__(
        self,
        data: int | Sized,
        batch_size: int | Budget,
        *,
        shuffle: bool = True,
        seed: int = 0,
        last: Last = "drop",
        shard: DataShard | None = None,
        seed_samples: bool = False,
    ) -> None:
        self.size = data if isinstance(data, int) else len(data)
        self.batch_size = batch_size
        self.shuffle, self.seed, self.last = shuffle, seed, last
        self.shard = shard or DataShard.of_processes()
        self.seed_samples = seed_samples
        self.unit = batch_size.multiple_of if isinstance(batch_size, Budget) else batch_size
        if last not in ("drop", "pad", "short"):
            raise ValueError(f'last must be "drop", "pad" or "short", saw {last!r}')
        if self.unit < 1 or self.unit % self.shard.world_size:
            name = "batch_size" if self.unit is batch_size else "multiple_of"
            raise ValueError(
                f"{name} is of all processes together, and {self.shard.world_size} must divide it; saw "
                f"{self.unit}"
            )
        self._progress = Progress(0)
        self.keeps = False  # whether loops note what they have drawn
        self.newest: IndexBatches | None = None  # what `iter` gave last
        self.begun: IndexBatches | None = None  # the loop that has begun last

    def __len__(self) -> int:
        """Batches of an epoch of this process; `TypeError` with a `Budget`."""
        if isinstance(self.batch_size, Budget):
            raise TypeError(
                "how many batches there are is not known before: they are of varying size"
            )
        whole, rest = divmod(self.size, self.batch_size)
        if not rest or self.last == "drop":
            return whole
        return whole + (self.last == "pad" or rest >= self.shard.world_size)

    def __iter__(self) -> IndexBatches:
        self.newest = IndexBatches(self, self._progress)
        return self.newest

    @property
    def epoch(self) -> int:
        """The epoch of the loop that draws, or of the next one."""
        return self._progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch; a position in it that was loaded is kept."""
        self._progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What was drawn: whole numbers, strings and booleans."""
        return self.state_at(self._progress.epoch, self._progress.place)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """The state in which `position` samples of an epoch have been taken."""
        return {
            "kind": _KIND,
            "version": VERSION,
            "size": self.size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": epoch,
            "position": position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there with the next loop; a loop that runs has no say any more.

        state  of a sampler, of a `ResumableLoader`, or of a `StatefulDataLoader` with any number of workers.
        Raises `DataError` for one of another size, seed or shuffle.
        """
        self._progress.load(*self.checked(state))
        self.begun = None

    def checked(self, state: dict[str, Any]) -> tuple[int, int]:
        """Epoch and position of a state."""
        same = {"size": self.size, "seed": self.seed, "shuffle": self.shuffle}
        state = checked(_within(state), _KIND, same)
        return state["epoch"], state["position"]

    def upcoming(self) -> tuple[int, int]:
        """Epoch and position at which the next loop begins."""
        return self._progress.peek()

    def batches(self, epoch: int, position: int) -> Iterator[tuple[int, Any]]:
        """From a position on: after which one each batch ends, and this process's indices of it."""
        order = Permutation(self.size, self.seed, epoch) if self.shuffle else None
        if isinstance(self.batch_size, Budget):
            batches = self._varying(order, self.batch_size, position)
        else:
            batches = self._equal(order, self.batch_size, position)
        for end, indices in batches:
            if self.seed_samples:
                yield end, [SeededIndex(i, seed_of(self.seed, epoch, i)) for i in indices]
            else:
                yield end, indices

    def _equal(
        self, order: Permutation | None, size: int, position: int
    ) -> Iterator[tuple[int, list[int]]]:
        own = self.shard.rows(size)
        rows = np.arange(own.start, own.stop)
        while (left := (self.size - position) // size) > 0:
            n = min(max(_AT_ONCE // len(rows), 1), left)
            positions = position + (np.arange(n) * size)[:, None] + rows
            for indices in _at(order, positions.ravel()).reshape(n, -1).tolist():
                position += size
                yield position, indices
        yield from self._rest(order, size, position)

    def _rest(
        self, order: Permutation | None, size: int, position: int
    ) -> Iterator[tuple[int, list[int]]]:
        """What is smaller than a batch."""
        left = self.size - position
        if left <= 0 or self.last == "drop":
            return
        if self.last == "short" and left < self.shard.world_size:
            return  # in all processes alike, so that they go on together
        own = self.shard.rows(size if self.last == "pad" else left)
        positions = (position + np.arange(own.start, own.stop)) % self.size
        yield self.size, _at(order, positions).tolist()

    def _varying(
        self, order: Permutation | None, budget: Budget, position: int
    ) -> Iterator[tuple[int, list[int]]]:
        ahead: list[int] = []
        source = self._from(order, position)

        def drawn() -> Iterator[int]:
            for i in count():
                if i == len(ahead):
                    ahead.extend(islice(source, 1))
                if i == len(ahead):
                    return
                yield ahead[i]

        while True:
            n, over = budget.fitting(drawn())
            if n == 0:
                if over:
                    raise DataError(
                        f"{self.unit} samples cost more than the budget of a batch.",
                        saw=f"samples {ahead[: self.unit]} that cost "
                        f"{[budget.cost_of(i) for i in ahead[: self.unit]]}, and a budget of {budget.most}",
                        hint="a larger budget, a smaller `multiple_of`, or data without such samples",
                    )
                yield from self._rest(order, self.unit, position)
                return
            position += n
            yield position, ahead[:n][self.shard.rows(n)]
            del ahead[:n]

    def _from(self, order: Permutation | None, position: int) -> Iterator[int]:
        for start in range(position, self.size, _AT_ONCE):
            yield from _at(order, np.arange(start, min(start + _AT_ONCE, self.size))).tolist()


class IndexBatches(Iterator[list[int]]):
    """A loop over batches of indices, with a state of its own, which torchdata's loader asks for.

    It begins with the first batch that is asked for: PyTorch's loaders make iterators that they never use.
    """

    def __init__(self, sampler: GlobalBatchSampler, progress: Progress) -> None:
        self._sampler, self._progress = sampler, progress
        self._steps: Iterator[tuple[int, list[int]]] | None = None
        self.epoch = self._position = 0
        self.keeps = sampler.keeps
        self.drawn: deque[tuple[int, int, list[int]]] = (
            deque()
        )  # epoch, position behind it, indices

    def __next__(self) -> list[int]:
        if self._steps is None:
            self._begin(*self._progress.claim())
        try:
            self._position, indices = next(self._steps)  # type: ignore[arg-type]
        except StopIteration:
            if self._is_newest():  # once: loaders with workers ask again and again
                self._sampler.begun = None
                self._progress.finish()
            raise
        if self._is_newest():
            self._progress.place = self._position
        if self.keeps:
            self.drawn.append((self.epoch, self._position, indices))
        return indices

    def state_dict(self) -> dict[str, Any]:
        """As `GlobalBatchSampler.state_dict`, of this loop."""
        if self._steps is None:
            return self._sampler.state_at(*self._progress.peek())
        return self._sampler.state_at(self.epoch, self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there; as `GlobalBatchSampler.load_state_dict`."""
        self._progress.load(*self._sampler.checked(state))
        self._begin(*self._progress.claim())

    def _begin(self, epoch: int, position: int) -> None:
        self._sampler.begun = self
        self.epoch, self._position = epoch, position
        self._steps = self._sampler.batches(epoch, position)

    def _is_newest(self) -> bool:
        return self._sampler.begun is self


def _at(order: Permutation | None, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions if order is None else order.at(positions)


def _within(state: Any) -> Any:
    """The sampler's state within one of a `StatefulDataLoader`."""
    if not isinstance(state, dict) or "kind" in state:
        return state
    if state.get("_steps_since_snapshot"):
        raise DataError(
            "This state of a `StatefulDataLoader` is that of an earlier batch.",
            saw=f"_steps_since_snapshot={state['_steps_since_snapshot']}",
            hint="StatefulDataLoader(..., snapshot_every_n_steps=1), or load it into such a loader",
        )
    main = state.get("_snapshot", {}).get("_main_snapshot", state)
    return main.get("_sampler_iter_state") or state
