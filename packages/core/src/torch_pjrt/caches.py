"""Caches that end: dictionaries with a most, and how full each is.

Recording looks something up in each call of an operator, so a cache here is a `dict` whose `get` is the
dictionary's own. Only the insertion of a new key asks whether there is room, and drops the oldest eighth
where there is none: what is dropped is worked out again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from torch_pjrt.session import session

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dictionary of at most `most` entries. Caches of one name are shown as one.

        _learned: Cache[Key, Signature] = Cache("signatures of calls", most=65_536)

    `setdefault` and `update` ask for no room: it is `cache[key] = value` alone that does.
    """

    __slots__ = ("__weakref__", "dropped", "most", "name")

    def __init__(self, name: str, most: int) -> None:
        super().__init__()
        self.name = name
        self.most = most
        self.dropped = 0
        session.caches.add(self)

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)  # so that the session's set can hold it

    def __eq__(self, other: object) -> bool:
        return self is other

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most and key not in self:
            self._make_room()
        super().__setitem__(key, value)

    def _make_room(self) -> None:
        too_many = len(self) - self.most + max(self.most // 8, 1)
        for oldest in list(self)[:too_many]:
            if self.pop(oldest, self) is not self:  # another thread may have dropped it
                self.dropped += 1


class Interned(Cache[K, V]):
    """One object for each key, to be compared by identity: as long as anybody has it, it is the one.

    What has to go is let go only, and found again while somebody holds it: a tape, a program, a tensor. So at
    most `most` objects are here that nobody else needs.

        spec = _interned.get(key) or _interned.still_held(key) or _interned.one(key, TensorSpec(*key))

    No lock is held meanwhile: a finalizer that runs in between may come here too.
    """

    __slots__ = ("_let_go",)

    def __init__(self, name: str, most: int) -> None:
        super().__init__(name, most)
        self._let_go: WeakValueDictionary[K, V] = WeakValueDictionary()

    def still_held(self, key: K) -> V | None:
        """The object of this key that was let go, if somebody holds it; it is kept again."""
        found = self._let_go.get(key)
        return None if found is None else self.one(key, found)

    def one(self, key: K, new: V) -> V:
        """The object of this key: `new`, if there is none by now."""
        if len(self) >= self.most and key not in self:
            self._make_room()
        return self.setdefault(key, new)

    def _make_room(self) -> None:
        too_many = len(self) - self.most + max(self.most // 8, 1)
        for oldest, value in list(self.items())[:too_many]:
            self._let_go[oldest] = value  # first, so that it is in one of the two at any moment
            if self.pop(oldest, None) is not None:
                self.dropped += 1


@dataclass(frozen=True, slots=True)
class Fill:
    """Entries of all caches of one name, the most that one of them may have, and how many had to go."""

    name: str
    entries: int
    most: int
    dropped: int


def fills() -> list[Fill]:
    """All caches by name."""
    found: dict[str, Fill] = {}
    for cache in list(session.caches):
        old = found.get(cache.name, Fill(cache.name, 0, 0, 0))
        found[cache.name] = Fill(
            cache.name,
            old.entries + len(cache),
            max(old.most, cache.most),
            old.dropped + cache.dropped,
        )
    return sorted(found.values(), key=lambda fill: fill.name)
