"""The state of a `DeviceLoader` is its loader's as of the batch received, whatever was prefetched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hangs import HANGS_S
from torch_pjrt import DeviceLoader


class Counter:
    """A loader whose state is a dict that it goes on changing, as careless loaders do."""

    def __init__(self, n: int) -> None:
        self.n, self.state = n, {"given": 0}

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.state["given"] < self.n:
            self.state["given"] += 1
            yield torch.tensor(self.state["given"])
        self.state["given"] = 0

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def fetched_ahead(counter: Counter, n: int) -> None:
    """Wait until the thread has taken so many batches."""
    deadline = time.monotonic() + HANGS_S
    while counter.state["given"] < n:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("device", ["pjrt", "cpu"])
def test_state_counts_the_batches_that_were_received(device: str) -> None:
    counter = Counter(9)
    loader = DeviceLoader(counter, device, prefetch=3)

    assert loader.state_dict() == {"given": 0}
    for number, batch in enumerate(loader, 1):
        if device == "pjrt" and number == 2:
            fetched_ahead(counter, 5)
        assert batch.item() == number and loader.state_dict() == {"given": number}
    assert loader.state_dict() == {"given": 0}


def test_state_of_a_loop_that_was_left_is_gone_on_from() -> None:
    counter = Counter(9)
    loader = DeviceLoader(counter, prefetch=2)
    for batch in loader:
        if batch.item() == 4:
            fetched_ahead(counter, 6)
            break
    state = loader.state_dict()
    other = DeviceLoader(Counter(9))

    other.load_state_dict(state)

    assert state == {"given": 4} == other.state_dict()
    assert [batch.item() for batch in other] == [5, 6, 7, 8, 9]


def test_loading_within_a_loop_ends_its_say() -> None:
    loader = DeviceLoader(Counter(9), prefetch=1)
    batches = iter(loader)
    assert [next(batches).item(), next(batches).item()] == [1, 2]

    loader.load_state_dict({"given": 7})
    next(batches)

    assert loader.state_dict()["given"] >= 7  # the loader's own


def test_a_state_that_was_asked_for_does_not_change() -> None:
    loader = DeviceLoader(Counter(9), prefetch=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()

    next(batches)

    assert state == {"given": 1} and loader.state_dict() == {"given": 2}


def test_a_loader_without_a_state_gives_none_to_it() -> None:
    loader = DeviceLoader([torch.ones(1)])

    assert not hasattr(loader, "state_dict") and not hasattr(loader, "load_state_dict")
    assert [batch.item() for batch in loader] == [1]


def test_an_error_of_the_state_is_raised_where_its_batch_would_have_come() -> None:
    class Broken(Counter):
        def state_dict(self) -> dict[str, Any]:
            if self.state["given"] == 3:
                raise OSError("no state")
            return super().state_dict()

    batches = iter(DeviceLoader(Broken(9)))

    assert [next(batches).item(), next(batches).item()] == [1, 2]
    with pytest.raises(OSError, match="no state"):
        next(batches)


class Delegating:
    """A wrapper as libraries write them: whatever is asked is asked of the loader within."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.state_of_loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def test_a_wrapper_whose_loader_has_no_state_loads() -> None:
    loader = DeviceLoader(Delegating([torch.ones(2), torch.zeros(2)]))

    assert [batch.tolist() for batch in loader] == [[1.0, 1.0], [0.0, 0.0]]
    with pytest.raises(AttributeError, match="state_of_loader"):
        loader.state_dict()
