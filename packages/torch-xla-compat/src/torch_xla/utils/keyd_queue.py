"""Queues between threads that can be closed; of `KeydQueue` one takes out what has a key."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

__all__ = ["KeydQueue", "Queue", "QueueBase"]


class QueueBase:
    """maxsize: how many elements are in it before `put` waits."""

    def __init__(self, maxsize: int = 1024) -> None:
        self._maxsize = maxsize
        self._changed = threading.Condition()
        self._no_reads = self._no_writes = False

    def max_size(self) -> int:
        """How many elements are in it at most."""
        return self._maxsize

    def close(self) -> None:
        """Nothing more goes in, and nobody waits: `get` of an empty queue gives None."""
        with self._changed:
            self._no_reads = self._no_writes = True
            self._changed.notify_all()

    def close_write(self) -> None:
        """Nothing comes any more: `get` of an empty queue gives None."""
        with self._changed:
            self._no_writes = True
            self._changed.notify_all()


class Queue(QueueBase):
    """What was put in first comes out first."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Put it in when there is room."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._maxsize or self._no_reads)
            if not self._no_reads:
                self._items.append(item)
                self._changed.notify_all()

    def get(self) -> Any:
        """The first one, when there is one; None if none comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._no_writes)
            item = self._items.popleft() if self._items else None
            self._changed.notify_all()
            return item


class KeydQueue(QueueBase):
    """A key is put in with each element."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: dict[Any, Any] = {}
        self._awaited: set[Any] = set()

    def put(self, key: Any, item: Any) -> None:
        """Put it in when there is room, or when somebody waits for the key."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._items) < self._maxsize or key in self._awaited or self._no_reads
            )
            if not self._no_reads:
                self._items[key] = item
                self._changed.notify_all()

    def get(self, key: Any) -> Any:
        """The element with that key, when it is there; None if it does not come."""
        with self._changed:
            self._awaited.add(key)
            self._changed.notify_all()
            self._changed.wait_for(lambda: key in self._items or self._no_writes)
            self._awaited.discard(key)
            item = self._items.pop(key, None)
            self._changed.notify_all()
            return item
