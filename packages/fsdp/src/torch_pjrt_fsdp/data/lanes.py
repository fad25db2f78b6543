"""One source of samples, read in a fixed order, blocks of it shuffled, from any position on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from itertools import islice
from typing import Any

from torch.utils.data import get_worker_info

from torch_pjrt_fsdp.data.errors import DataError
from torch_pjrt_fsdp.data.permutation import Permutation, key_of


class Lane:
    """A reader of `source` from its beginning, or from a state.

    source  gives the same samples in the same order each time it is read; if it has `set_epoch`, for each
            epoch. It, or its iterator, may have `state_dict` and `load_state_dict`; otherwise resuming reads
            it again up to the position.
    block   so many samples are shuffled among each other; 1 leaves them as they are.
    repeat  begin anew at the end, as the next epoch of the source.
    """

    def __init__(
        self, source: Iterable[Any], number: int, seed: int, block: int, repeat: bool
    ) -> None:
        self._source, self._number, self._seed = source, number, seed
        self._size, self._repeat = block, repeat
        self._round = self._taken = self._offset = 0
        self._block: list[Any] = []
        self._block_state: Any = None
        self._opened: Any = source
        self._samples: Iterator[Any] = iter(())
        self._is_inexact = _is_inexact(getattr(source, "_ex_iterable", None))

    def begin(self, epoch: int, position: int, state: dict[str, Any] | None) -> None:
        """Go to where `position` samples of an epoch were given; `state` saves reading them again."""
        if state is None:
            self._open(epoch, 0, None)
            done = 0
            while done < position:
                got = len(self.take(min(position - done, 1000)))
                done += got
                if not got:
                    raise self._shorter(done, position)
            return
        self._open(state["round"], state["taken"], state["source"])
        if state["offset"]:
            self._fill(self._size)
            self._offset = state["offset"]

    def state(self) -> dict[str, Any]:
        """Where it is; plain Python, if the source's state is."""
        between = self._offset == len(self._block)
        return {
            "round": self._round,
            "taken": self._taken if between else self._taken - len(self._block),
            "offset": 0 if between else self._offset,
            "source": self._source_state() if between else self._block_state,
        }

    def take(self, n: int) -> list[Any]:
        """The next n samples; fewer at the end."""
        samples: list[Any] = []
        while len(samples) < n:
            if self._offset == len(self._block) and not self._fill(n - len(samples)):
                break
            end = min(self._offset + n - len(samples), len(self._block))
            samples += self._block[self._offset : end]
            self._block[self._offset : end] = [None] * (end - self._offset)  # no longer held here
            self._offset = end
        return samples

    def _open(self, round_: int, taken: int, state: Any) -> None:
        self._round, self._taken, self._offset, self._block = round_, taken, 0, []
        source: Any = self._source
        of_source = hasattr(source, "load_state_dict")
        if of_source:  # streaming datasets begin at what was loaded last, each time they are read
            source = self._opened = _copied(source)
        if hasattr(source, "set_epoch"):
            source.set_epoch(round_)
        if of_source and state is not None:
            source.load_state_dict(state)
        self._samples = iter(source)
        if self._samples is source and type(source).__module__ in ("builtins", "itertools"):
            raise DataError(
                f"The source of lane {self._number} is an iterator, which can be read once.",
                saw=type(source).__name__,
                hint="give an object whose `__iter__` begins anew: a dataset, a list of records, a class",
            )
        if state is not None and not of_source:
            self._samples.load_state_dict(state)  # type: ignore[attr-defined]
        elif state is None and taken:
            skipped = sum(1 for _ in islice(self._samples, taken))
            if skipped < taken:
                raise self._shorter(skipped, taken)

    def _fill(self, wanted: int) -> bool:
        """Read the next block, or as many as are wanted where nothing is shuffled; whether there was one."""
        is_shuffled = self._size > 1
        self._block_state = self._source_state() if is_shuffled else None
        block = list(islice(self._samples, self._size if is_shuffled else wanted))
        if not block:
            if not self._repeat:
                return False
            if not self._taken:
                raise DataError(
                    f"The source of lane {self._number} is empty and cannot be repeated."
                )
            self._open(self._round + 1, 0, None)
            return self._fill(wanted)
        if is_shuffled:
            key = key_of(self._number, self._round, self._taken)
            block = [block[i] for i in Permutation(len(block), self._seed, key)[:]]
        self._taken += len(block)
        self._block, self._offset = block, 0
        return True

    def _shorter(self, saw: int, expected: int) -> DataError:
        return DataError(
            f"The source of lane {self._number} has become shorter.",
            saw=f"{saw} samples",
            expected=f"the {expected} that were given before",
        )

    def _source_state(self) -> Any:
        for one in (self._opened, self._samples):
            if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
                return None if self._is_inexact else one.state_dict()  # type: ignore[union-attr]
        return None


def _copied(source: Any) -> Any:
    """A shallow copy with attributes of its own, which those of Hugging Face's datasets would share."""
    copied = copy(source)
    if hasattr(source, "__dict__"):
        copied.__dict__ = dict(vars(source))
    return copied


@contextmanager
def alone() -> Iterator[None]:
    """A block in which a worker is not known as one: datasets that would share out their samples give all."""
    from torch.utils.data._utils import worker

    info = get_worker_info()
    worker._worker_info = None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        worker._worker_info = info  # type: ignore[attr-defined]


def _is_inexact(steps: Any) -> bool:
    """Whether a streaming dataset of Hugging Face shuffles with a buffer in one of its steps.

    Its states leave out what is in the buffer, as their documentation says.
    """
    if steps is None:
        return False
    if "BufferShuffled" in type(steps).__name__:
        return True
    within = [getattr(steps, "ex_iterable", None), *(getattr(steps, "ex_iterables", None) or [])]
    return any(_is_inexact(one) for one in within)
