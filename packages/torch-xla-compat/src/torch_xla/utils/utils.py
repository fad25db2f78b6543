"""What examples use: data that is made up, and variables that are read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any


class SampleGenerator:
    """The same batch, `sample_count` times: data for a measurement."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._sample_count):
            yield self._data

    def __len__(self) -> int:
        return self._sample_count


class DataWrapper:
    """Something that `get_data` changes before it goes to the device."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """The variable `name` as `type`; `defval` where it is not set. A bool is true for 1 and `true`."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return text.strip().lower() in ("1", "true") if type is bool else type(text)


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[[str], Any] = print) -> Any:
    """What `fn()` returns; prints `msg` with the seconds it took."""
    start = time.perf_counter()
    result = fn()
    printfn(f"{msg}{time.perf_counter() - start:.3f}sec")
    return result
