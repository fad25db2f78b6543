"""What a collective returns: done, as far as PyTorch is concerned, once it is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d


def done(results: Sequence[torch.Tensor]) -> Any:
    """The work of a launched collective, whose results are lazy tensors: there is nothing to wait for."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(list(results))
    return _distributed_c10d._create_work_from_future(future).boxed()  # pyright: ignore[reportAttributeAccessIssue]


def pending(results: Sequence[torch.Tensor], finish: Callable[[], int]) -> Any:
    """The work of what `finish`, called by the first who waits, ends; it gives the rank at the other end."""
    work = _Pending(results, finish)
    _alive.add(work)
    return work.boxed()


class _Pending(dist.Work):
    """Ends when somebody waits for it: what it gives is written by that thread, as if recorded there."""

    def __init__(self, results: Sequence[torch.Tensor], finish: Callable[[], int]) -> None:
        super().__init__()
        self._results = list(results)
        self._finish: Callable[[], int] | None = finish
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._peer = -1
        self._error: Exception | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Have the results be there for what is recorded from now on; raises each time, if it has failed."""
        if self._finish is not None:
            finish, self._finish = self._finish, None
            try:
                self._peer = finish()
            except Exception as error:
                self._error = error
                self._future.set_exception(error)
            else:
                self._future.set_result(self._results)
            self._results = []
            _alive.discard(self)
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the error's traceback holds this frame
        return True

    def is_completed(self) -> bool:
        return self._finish is None

    def is_success(self) -> bool:
        return self._finish is None and self._error is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._future.value()

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """Of a receive from anyone: who sent, once it is there."""
        return self._peer

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        self.wait()
        return self._future


# PyTorch holds a Work by its C++ half alone, which without this Python half would wait for ever.
_alive: set[_Pending] = set()
