"""`ResumableLoader`: a `DataLoader` whose position can be saved, and gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal

from torch.utils.data import DataLoader

from torch_pjrt_fsdp.data.errors import DataError, WorkerDied
from torch_pjrt_fsdp.data.sampler import GlobalBatchSampler, IndexBatches
from torch_pjrt_fsdp.data.seeds import pytorch_seeded, seed_of
from torch_pjrt_fsdp.data.streams import GlobalStream, Marked


class ResumableLoader:
    """The batches of a `DataLoader`, and a state that counts those which were received, not those prefetched.

    loader  with a `GlobalBatchSampler` as `batch_sampler`, or a `GlobalStream` as dataset and
            `batch_size=None`. Any number of workers, in order.

        sampler = GlobalBatchSampler(dataset, batch_size=256, seed=0)
        loader = ResumableLoader(DataLoader(dataset, batch_sampler=sampler, num_workers=4))
        for epoch in range(loader.epoch, 10):
            loader.set_epoch(epoch)
            for batch in loader:
                ...
                torch.save(loader.state_dict(), path)  # the batch in hand counts as done

    A loop is an epoch: the first after `load_state_dict` is the rest of one, which may be empty, and each
    other one is whole, with the next number, also where the one before was left early. States are those of
    the sampler or the stream, and can be loaded with other workers and processes. Where loops are nested, the
    state is that of the one that began last. Other attributes (`dataset`, `num_workers`, ...) are the
    `DataLoader`'s.

    A loop draws nothing from PyTorch's global generator, as a `DataLoader` does when it begins: its workers
    are seeded by seed and epoch. So a run that resumes draws what one without interruption does.

    An error of the dataset is raised where its batch would have come, with a note that says which samples
    these were. A worker that is killed raises `WorkerDied`.
    """

    gives: Literal["part"] = "part"

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.shard = (source := _source_of(loader)).shard
        self._source: GlobalBatchSampler | GlobalStream = source
        self._state: dict[str, Any] | None = None
        self._loop: object = None

    def __len__(self) -> int:
        """Batches of a whole epoch; `TypeError` where that is not known."""
        return len(self._source)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "_source"):  # not yet there: copying, unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def epoch(self) -> int:
        """The epoch that `state_dict` speaks of."""
        return self.state_dict()["epoch"]

    def set_epoch(self, epoch: int) -> None:
        """The next loop is this epoch, from its beginning, or from the position in it that was loaded."""
        self._source.set_epoch(epoch)
        self._state, self._loop = None, None

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is behind the batch that it gave last; plain Python, for `weights_only=True`."""
        return dict(self._source.state_dict() if self._state is None else self._state)

    def load_state_dict(self, state: Any) -> None:
        """The next loop goes on there; a loop that runs has no say in the state any more.

        Raises `DataError` for a state of other data, or another seed.
        """
        self._source.load_state_dict(state)
        self._state, self._loop = None, None

    def __iter__(self) -> Iterator[Any]:
        loop = self._loop = object()
        if isinstance(self._source, GlobalStream):
            self._state = self._source.state_at(*self._source.upcoming())
            with self._source.marking(), self._seeded():
                batches = iter(self.loader)
            if self.loader.num_workers:  # what has begun are copies of it
                self._source.claim()
            return self._give_of_stream(self._source, batches, loop)
        self._state = self._source.state_at(*self._source.upcoming())
        self._source.keeps = True
        try:
            with self._seeded():
                batches = iter(self.loader)
        finally:
            self._source.keeps = False
        drawing = self._source.newest
        assert drawing is not None
        return self._give(self._source, drawing, batches, loop)

    def _seeded(self) -> AbstractContextManager[None]:
        """A block in which the workers' seeds are drawn."""
        return pytorch_seeded(seed_of(self._source.seed, self._source.upcoming()[0], 0))

    def _give(
        self,
        sampler: GlobalBatchSampler,
        drawing: IndexBatches,
        batches: Iterator[Any],
        loop: object,
    ) -> Iterator[Any]:
        for batch in _watched(batches, lambda: _place(drawing.drawn)):
            epoch, position, _ = drawing.drawn.popleft()
            if self._loop is loop:
                self._state = sampler.state_at(epoch, position)
            yield batch
            del batch
        if self._loop is loop:
            self._state = sampler.state_at(drawing.epoch + 1, 0)

    def _give_of_stream(
        self, stream: GlobalStream, batches: Iterator[Any], loop: object
    ) -> Iterator[Any]:
        for marked in _watched(batches, lambda: ""):
            assert isinstance(marked, Marked)
            if self._loop is loop:
                self._state = marked.state
            batch = marked.batch
            del marked
            yield batch
            del batch
        if self._loop is loop:
            if self.loader.num_workers:
                stream.finish()
            self._state = None


def _source_of(loader: Any) -> GlobalBatchSampler | GlobalStream:
    """What says where its loops are."""
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"loader must be a `torch.utils.data.DataLoader`, saw {type(loader).__name__}"
        )
    if not getattr(loader, "in_order", True):
        raise ValueError(
            "DataLoader(in_order=False) gives batches in no order that a state could name"
        )
    if isinstance(loader.batch_sampler, GlobalBatchSampler):
        return loader.batch_sampler
    if isinstance(loader.dataset, GlobalStream):
        if loader.batch_size is not None:
            raise ValueError(
                "a GlobalStream makes batches itself: DataLoader(stream, batch_size=None)"
            )
        if loader.persistent_workers:
            raise ValueError(
                "persistent_workers=True: workers that have begun cannot be told where a stream goes on"
            )
        return loader.dataset
    raise TypeError(
        "the DataLoader needs a GlobalBatchSampler as `batch_sampler` or a GlobalStream as dataset; saw "
        f"{type(loader.batch_sampler).__name__} and {type(loader.dataset).__name__}"
    )


def _place(drawn: Any) -> str:
    if not drawn:
        return ""
    epoch, position, indices = drawn[0]
    shown = f"{indices[:8]}"[:-1] + (", ...]" if len(indices) > 8 else "]")
    return f"epoch {epoch}, the batch up to position {position}, samples {shown}"


def _shut_down(batches: Any) -> None:
    """End the other workers, and with them PyTorch's watch over all.

    Its handler of SIGCHLD would raise once more, wherever the main thread is then.
    """
    shut_down = getattr(batches, "_shutdown_workers", None)
    for _ in range(2):
        if shut_down is not None:
            with suppress(RuntimeError):  # that handler, at last
                shut_down()


def _watched(batches: Iterator[Any], place: Any) -> Iterator[Any]:
    """The same, with errors that say where they happened."""
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except BaseException as error:
            where = place()
            if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
                _shut_down(batches)
                raise WorkerDied(
                    "A worker of the DataLoader has ended.",
                    saw=str(error).splitlines()[0] + (f"; {where}" if where else ""),
                    hint="often the kernel has killed it for want of memory, or a library of the dataset "
                    "has crashed; `num_workers=0` shows the latter's traceback. The loader's state is that "
                    "before the missing batch",
                ) from error
            if where and not isinstance(error, DataError):
                error.add_note(f"While loading {where}.")
            raise
        yield batch
        del batch
