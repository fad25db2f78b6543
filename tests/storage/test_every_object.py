from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch

from torch_pjrt.every_object import Living, every
from torch_pjrt.extend import Buffer, buffer_of
from torch_pjrt.tensor.storage.buffer import buffers


@pytest.mark.parametrize("kind", [Buffer, torch.Tensor, torch.nn.Parameter])
def test_it_finds_what_a_list_of_all_objects_has(kind: type[object]) -> None:
    kept = torch.nn.Linear(3, 4).to("pjrt"), [torch.ones(2, device="pjrt") for _ in range(9)]

    found = every(kind)
    listed = [x for x in gc.get_objects() if issubclass(type(x), kind)]

    assert {id(x) for x in found} == {id(x) for x in listed}
    assert len(found) >= len(kept[0].weight.shape)


@pytest.mark.parametrize("kind", [Buffer, torch.nn.Parameter])
def test_it_finds_what_is_frozen(kind: type[object]) -> None:
    kept = torch.nn.Linear(3, 4).to("pjrt")
    gc.freeze()
    try:
        found = every(kind)
    finally:
        gc.unfreeze()
    assert any(x is kept.weight or x is buffer_of(kept.weight) for x in found)


class Noted:
    """Of a class that notes its objects."""

    def __init__(self) -> None:
        if noted.is_noting:
            noted.note(self)


noted = Living(Noted)


def test_those_from_before_and_from_later_are_there_until_they_go() -> None:
    before, lost = Noted(), Noted()
    assert set(noted.all()) == {before, lost}

    later = Noted()
    del lost
    assert set(noted.all()) == {before, later}

    later.itself = later  # type: ignore[attr-defined]  # garbage that only a collection finds
    del later
    gc.collect()
    assert noted.all() == [before]


def _made_by_storage() -> torch.Tensor:
    storage = torch.UntypedStorage(8, device="pjrt")
    return torch.tensor([], device="pjrt").set_(storage)


MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "an operator": lambda: torch.ones(2, device="pjrt") + 1,
    "an upload": lambda: torch.ones(2).to("pjrt"),
    "empty": lambda: torch.empty(2, device="pjrt"),
    "a storage": _made_by_storage,
    "a copy of a storage": lambda: torch.tensor([], device="pjrt").set_(
        torch.ones(2, device="pjrt").untyped_storage().clone()
    ),
    "data-dependent sizes": lambda: torch.tensor([1.0, 0.0]).to("pjrt").nonzero(),
    "complex numbers": lambda: torch.ones(2, device="pjrt") * 1j,
    "a gradient": lambda: torch.autograd.grad(
        (w := torch.ones(2, device="pjrt", requires_grad=True)).sin().sum(), w
    )[0],
    "an index": lambda: torch.arange(6, device="pjrt")[torch.tensor([1, 2])],
    "a compiled function": lambda: torch.compile(torch.sin, backend="pjrt")(
        torch.ones(2, device="pjrt")
    ),
    "a deep copy": lambda: torch.ones(2, device="pjrt").__deepcopy__({}),
    "a list of results": lambda: torch._foreach_sin([torch.ones(2, device="pjrt")])[0],
}


@pytest.mark.parametrize("name", MAKERS)
def test_all_buffers_are_those_that_a_search_finds(name: str) -> None:
    buffers.all()  # from here on they are noted
    made = MAKERS[name]()

    assert any(x is buffer_of(made) for x in buffers.all())
    assert {id(x) for x in buffers.all()} == {id(x) for x in every(Buffer)}


class Made:
    """Of a class that threads make objects of while others ask for all."""

    living: Living[Made]

    def __init__(self) -> None:
        if Made.living.is_noting:
            Made.living.note(self)


def test_threads_that_ask_at_once_find_all() -> None:
    found: list[list[Made]] = []
    made: list[Made] = []

    def ask() -> None:
        found.append(Made.living.all())

    def make() -> None:
        made.extend([Made() for _ in range(500)])

    for _ in range(5):
        found.clear()
        Made.living = Living(Made)
        before = [Made() for _ in range(20)]
        threads = [threading.Thread(target=target) for target in (ask, make, ask, ask, make, ask)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert all(set(before) <= set(each) for each in found)
        assert set(Made.living.all()) >= {*before, *made[-1000:]}
