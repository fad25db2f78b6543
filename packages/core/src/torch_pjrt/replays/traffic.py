"""What a step brings from the host and what it reads, while it is observed.

A tensor made from the host is a constant of the recording if its content was the same in each observed call.
A value that was read is part of the recording: a replay reads it too, and goes on only if it is the same.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_pjrt.graph.tape import Value
from torch_pjrt.interrupts.signals import handled
from torch_pjrt.tensor.storage import transfer


@dataclass(frozen=True, slots=True)
class Content:
    """An array of the host, compared by its bytes."""

    shape: tuple[int, ...]
    dtype: Any
    data: bytes

    @classmethod
    def of(cls, host: np.ndarray) -> Content:
        """Its content now."""
        return cls(host.shape, host.dtype, host.tobytes())

    def array(self) -> np.ndarray:
        """It again."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)

    def __str__(self) -> str:
        many = len(self.data) > 8 * self.dtype.itemsize
        return f"{self.dtype}{list(self.shape)}" if many else str(self.array().tolist())


class Traffic:
    """The uploads and reads of one thread."""

    def __init__(self) -> None:
        self._uploads: dict[int, tuple[weakref.ref[Value], Content]] = {}
        self._of_others: dict[int, weakref.ref[Value]] = {}
        self._thread = threading.get_ident()
        self._note_read: Any = None

    def uploaded(self, value: Value) -> Content | None:
        """What was uploaded as this value; None if it did not come from the host."""
        found = self._uploads.get(id(value))
        return found[1] if found is not None and found[0]() is value else None

    def is_of_others(self, value: Value) -> bool:
        """Whether another thread has uploaded it."""
        found = self._of_others.get(id(value))
        return found is not None and found() is value

    @contextmanager
    def noted(self, note_read: Any) -> Iterator[None]:
        """While the block runs, uploads are kept, and `note_read` is told of reads."""

        def on_upload(value: Value, host: np.ndarray) -> None:
            if threading.get_ident() == self._thread:
                self._uploads[id(value)] = (weakref.ref(value), Content.of(host))
            else:
                self._of_others[id(value)] = weakref.ref(value)

        def on_read(value: Value, host: np.ndarray) -> None:
            if threading.get_ident() == self._thread and not in_a_handler():
                note_read(value, Content.of(host))

        # Nothing can come between the begin of a `try`, or of a `finally`, and the end of its first call.
        try:
            transfer.on_upload.append(on_upload)
            try:
                transfer.on_read.append(on_read)
                yield
            finally:
                transfer.on_read.remove(on_read)
        finally:
            transfer.on_upload.remove(on_upload)


def in_a_handler() -> bool:
    """Whether this thread runs a handler of a signal."""
    return bool(handled.running) and threading.get_ident() == threading.main_thread().ident


def host_random_numbers() -> tuple[Any, ...]:
    """The state of the host's generators: it is another after somebody drew."""
    numbers = np.random.get_state(legacy=False)
    state: Any = numbers["state"]  # type: ignore[call-overload,index]
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        state["key"].tobytes() if "key" in state else repr(state),
        state.get("pos"),
    )
