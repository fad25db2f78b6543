"""What a collective returns: done, as far as PyTorch is concerned, once it is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Launched(dist.Work):
    """A collective that the device has, whose results are lazy tensors: there is nothing to wait for."""

    def __init__(
        self, results: Sequence[torch.Tensor], finish: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._results = list(results)
        self._finish = finish
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        if finish is None:
            self._future.set_result(self._results)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Have the results be there for what is recorded from now on."""
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
            self._future.set_result(self._results)
        return True

    def is_completed(self) -> bool:
        return self._finish is None

    def is_success(self) -> bool:
        return self._finish is None

    def exception(self) -> Any:
        return None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        self.wait()
        return self._future
