"""`DeviceLoader` gives a loader's batches on the device, in order, whatever they are made of."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import torch_pjrt
from torch_pjrt import DeviceLoader
from torch_pjrt.tensor.storage.view import value_of


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


@dataclass
class Example:
    x: torch.Tensor
    parts: list[Any]


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "torch_pjrt.DeviceLoader"]


def address(x: torch.Tensor) -> int:
    torch_pjrt.sync()
    return value_of(x).array.unsafe_buffer_pointer()  # type: ignore[union-attr]


def numbers(n: int) -> Iterator[torch.Tensor]:
    for i in range(n):
        yield torch.full((3,), float(i))


class Numbers:
    """A loader that can be read again and again."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[torch.Tensor]:
        return numbers(self.n)

    def __len__(self) -> int:
        return self.n


def test_batches_come_in_order_on_the_device() -> None:
    batches = list(DeviceLoader(Numbers(10)))

    assert [b.device.type for b in batches] == ["pjrt"] * 10
    assert [b[0].item() for b in batches] == list(range(10))


def test_tensors_in_containers_are_moved_and_the_rest_is_left() -> None:
    thing = object()
    batch = {
        "a": (torch.ones(2), [torch.zeros(1), "text", None, 3]),
        "b": Pair(torch.ones(3), "name"),
        "c": Example(torch.ones(4), [torch.ones(5)]),
        "d": thing,
    }

    [moved] = DeviceLoader([batch])

    assert moved["a"][0].device.type == moved["a"][1][0].device.type == "pjrt"
    assert moved["a"][1][1:] == ["text", None, 3]
    assert isinstance(moved["b"], Pair) and moved["b"].x.tolist() == [1, 1, 1]
    assert moved["b"].name == "name"
    assert isinstance(moved["c"], Example) and moved["c"].parts[0].device.type == "pjrt"
    assert moved["d"] is thing
    assert batch["c"].x.device.type == "cpu"


def test_what_moves_itself_is_asked_to() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])

    [moved] = DeviceLoader([packed])

    assert isinstance(moved, PackedSequence)
    assert moved.data.device.type == "pjrt"
    assert moved.batch_sizes.device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int64, torch.float64])
def test_dtypes_and_strides_are_kept(dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(1, 2, 3, 4).to(dtype).to(memory_format=torch.channels_last)

    [moved] = DeviceLoader([x])

    assert moved.dtype == dtype and moved.stride() == x.stride()
    assert torch.equal(moved.cpu(), x)


def test_loader_of_pytorch_with_workers_and_pinned_memory() -> None:
    data = TensorDataset(torch.arange(20.0), torch.arange(20))
    for keywords in ({}, {"pin_memory": True}, {"num_workers": 1}):
        loader = DataLoader(data, batch_size=5, **keywords)  # type: ignore[arg-type]

        batches = list(DeviceLoader(loader))

        assert torch.cat([x for x, _ in batches]).tolist() == list(range(20))


def test_same_seed_gives_the_same_shuffle_as_without() -> None:
    loader = DataLoader(TensorDataset(torch.arange(50)), batch_size=5, shuffle=True)
    torch.manual_seed(7)
    plain = [x.tolist() for (x,) in loader]
    torch.manual_seed(7)

    assert [x.tolist() for (x,) in DeviceLoader(loader)] == plain


def test_epochs_can_follow_each_other_and_be_nested() -> None:
    loader = DeviceLoader(Numbers(3))

    pairs = [(a[0].item(), b[0].item()) for a in loader for b in loader]

    assert pairs == [(i, j) for i in range(3) for j in range(3)]
    assert not threads()


def test_length_and_attributes_are_the_loaders() -> None:
    data = TensorDataset(torch.arange(20.0))
    loader = DeviceLoader(DataLoader(data, batch_size=6))

    assert len(loader) == 4
    assert loader.dataset is data
    assert loader.batch_size == 6
    with pytest.raises(TypeError):
        len(DeviceLoader(numbers(3)))


def test_epoch_reaches_the_sampler() -> None:
    data = TensorDataset(torch.arange(20.0))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0)

    DeviceLoader(DataLoader(data, sampler=sampler)).set_epoch(5)

    assert sampler.epoch == 5
    with pytest.raises(AttributeError, match="set_epoch"):
        DeviceLoader(Numbers(1)).set_epoch(1)


def failing() -> Iterator[torch.Tensor]:
    yield from numbers(3)
    raise KeyError("broken file")


def test_error_of_the_loader_comes_after_its_batches_with_its_traceback() -> None:
    seen = []

    with pytest.raises(KeyError, match="broken file") as raised:
        for x in DeviceLoader(failing()):
            seen.append(x[0].item())

    assert seen == [0, 1, 2]
    assert any(f.name == "failing" for f in traceback.extract_tb(raised.value.__traceback__))
    assert not threads()


def test_leaving_the_loop_ends_the_thread_and_the_loader() -> None:
    ended = []

    def endless() -> Iterator[torch.Tensor]:
        try:
            while True:
                yield torch.ones(2)
        finally:
            ended.append(True)

    for x in DeviceLoader(endless()):
        assert x.sum().item() == 2
        break
    gc.collect()

    assert not threads()
    assert ended == [True]


def test_no_more_batches_are_taken_than_asked_for() -> None:
    taken = []

    def counted() -> Iterator[torch.Tensor]:
        for i in range(20):
            taken.append(i)
            yield torch.full((1,), float(i))

    for x in DeviceLoader(counted(), prefetch=2):
        # In use, in the queue, and one that waits to get in.
        assert len(taken) <= x.item() + 1 + 2 + 1


def test_empty_loader_gives_nothing() -> None:
    assert list(DeviceLoader([])) == []


def test_prefetching_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        DeviceLoader([], prefetch=0)


def test_other_devices_are_served_too() -> None:
    assert [b.device.type for b in DeviceLoader(Numbers(2), device="cpu")] == ["cpu", "cpu"]


def addresses_of_fresh(wrap: Any) -> tuple[list[int], list[int]]:
    """Where the host tensors were, and where the device's arrays are."""
    host = []

    def fresh() -> Iterator[Any]:
        for _ in range(3):
            x = torch.ones(1 << 16)
            host.append(x.data_ptr())
            box = [wrap(x)]
            del x
            yield box.pop()

    device = []
    for batch in DeviceLoader(fresh(), prefetch=1):
        [x] = tree_leaves(batch)
        device.append(address(x))
    return host[1:], device[1:]


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}], ids=["alone", "list", "nested"]
)
def test_batch_that_nobody_else_holds_is_not_copied(wrap: Any) -> None:
    host, device = addresses_of_fresh(wrap)

    assert device == host


def reused(kind: str) -> Iterator[Any]:
    """Batches whose memory the loader writes to again."""
    numpy = np.zeros(1 << 12, np.float32)
    tensor, shared = torch.zeros(1 << 12), torch.zeros(1 << 12).share_memory_()
    kept = [torch.zeros(1 << 12)]
    for i in range(6):
        if kind == "numpy":
            numpy[:] = i
            yield torch.from_numpy(numpy)
        elif kind == "view":
            tensor.fill_(i)
            yield tensor[:]
        elif kind == "shared":
            shared.fill_(i)
            yield shared.detach()
        elif kind == "container":
            kept[0].fill_(i)
            yield kept
        else:
            tensor.fill_(i)
            yield tensor


@pytest.mark.parametrize("kind", ["numpy", "view", "shared", "container", "tensor"])
def test_memory_that_the_loader_writes_to_again_is_copied(kind: str) -> None:
    received = list(DeviceLoader(reused(kind), prefetch=1))

    firsts = [(b[0] if kind == "container" else b)[0].item() for b in received]
    assert firsts == [0, 1, 2, 3, 4, 5]


def test_list_of_batches_survives_writing_to_what_came() -> None:
    batches = [torch.ones(1 << 12), torch.ones(1 << 12)]

    for _ in range(2):
        for x in DeviceLoader(batches):
            x.add_(1)
            torch_pjrt.sync()

    assert all(b.eq(1).all() for b in batches)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return numbers(4)


def test_training_compiles_as_often_as_without(compiled: Any) -> None:
    weight = torch.ones(3, device="pjrt", requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        for x in DeviceLoader(DataLoader(Stream(), batch_size=2)):
            (x * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert compiled() <= 2  # the first step's numbers, and the others'


def test_upload_that_does_not_block_lets_the_source_be_written_to() -> None:
    x = torch.ones(1 << 12).pin_memory()
    moved = x.to("pjrt", non_blocking=True)
    target = torch.empty(1 << 12, device="pjrt").copy_(x, non_blocking=True)

    x.zero_()

    assert moved.sum().item() == target.sum().item() == 1 << 12
    assert moved.to("cpu", non_blocking=True).sum() == 1 << 12
