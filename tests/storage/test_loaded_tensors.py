"""Tensors that come from a file are what tensors of operators are: arrays that look like them, not bytes."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fixture_types import Run
from torch_pjrt.extend import buffer_of
from torch_pjrt.tensor.storage.buffer import buffer_behind
from torch_pjrt.tensor.storage.host_buffer import storage_of

WHOLE: dict[str, torch.Tensor] = {
    "float32": torch.randn(3, 4),
    "bfloat16": torch.randn(3, 4).bfloat16(),
    "float8": torch.randn(3, 4).to(torch.float8_e4m3fn),
    "float64": torch.randn(3, 4, dtype=torch.float64),
    "int64": torch.arange(12).reshape(3, 4),
    "bool": torch.tensor([True, False, True]),
    "complex64": torch.randn(3, 4, dtype=torch.complex64),
    "transposed": torch.randn(3, 4).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "of no dims": torch.tensor(2.5),
    "of no elements": torch.empty(0, 3),
}
PARTS: dict[str, torch.Tensor] = {
    "a row": torch.randn(3, 4)[1],
    "a column": torch.randn(3, 4)[:, 1],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "with a gap": torch.randn(3, 4)[:, :2],
    "of other bits": torch.randn(3, 4).view(torch.int32)[1:],
}


def loaded(x: Any, *, in_zip: bool = True) -> Any:
    file = io.BytesIO()
    torch.save(x, file, _use_new_zipfile_serialization=in_zip)
    file.seek(0)
    return torch.load(file, map_location="pjrt")


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "file": loaded,
    "older file": lambda x: loaded(x, in_zip=False),
    "pickle": lambda x: pickle.loads(pickle.dumps(x.to("pjrt"))),
    "deep copy": lambda x: copy.deepcopy(x.to("pjrt")),
}


# PyTorch has no storages of float8 for its older files, which pickle uses, on the CPU either.
@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for name in WHOLE
        for way in WAYS
        if name != "float8" or way in ("file", "deep copy")
    ],
)
def test_whole_one_looks_like_its_buffer(name: str, way: str) -> None:
    x = WHOLE[name]
    found = WAYS[way](x)
    buffer = buffer_of(found)

    assert (found.dtype, found.shape, found.stride()) == (x.dtype, x.shape, x.stride())
    assert (buffer.spec.dtype, buffer.spec.shape) == (x.dtype, x.shape)
    assert not buffer.viewed
    assert torch.equal(found.cpu(), x)


@pytest.mark.parametrize("name", PARTS)
def test_part_of_a_storage_has_all_of_it(name: str) -> None:
    x = PARTS[name]
    found = loaded(x)

    assert (found.stride(), found.storage_offset()) == (x.stride(), x.storage_offset())
    assert found.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert torch.equal(found.cpu(), x)
    assert torch.equal((found + 1).cpu(), x + 1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_tensors_that_share_memory_share_it_still(order: tuple[int, int]) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    pair = [whole, whole[1:].t()]
    expected = [pair[i].clone() for i in order]
    found = loaded([pair[i] for i in order])

    assert all(torch.equal(x.cpu(), y) for x, y in zip(found, expected, strict=True))
    found[order.index(0)].mul_(2)
    assert all(torch.equal(x.cpu(), y * 2) for x, y in zip(found, expected, strict=True))
    found[order.index(1)].add_(1)
    assert found[order.index(0)].cpu()[1:].equal(whole[1:] * 2 + 1)


def test_tied_weights_are_one_buffer_that_is_not_viewed() -> None:
    x = torch.randn(3, 4)
    one, other = loaded([x, x])

    assert buffer_of(one) is buffer_of(other)
    assert not buffer_of(one).viewed
    one.zero_()
    assert not other.any()


def test_first_tensor_of_a_process(python: Run, tmp_path: Path) -> None:
    torch.save(torch.ones(3, 4), tmp_path / "x.pt")
    python(
        "import torch\n"
        f"x = torch.load({str(tmp_path / 'x.pt')!r}, map_location='pjrt')\n"
        "from torch_pjrt.extend import buffer_of\n"
        "assert buffer_of(x).spec.dtype is torch.float32, buffer_of(x).spec\n"
        "assert not buffer_of(x).viewed\n"
        "assert x.sum().item() == 12\n"
    )


def test_mapped_file(tmp_path: Path) -> None:
    x = {"a": torch.randn(3, 4), "b": torch.arange(5)}
    torch.save(x, tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt", map_location="pjrt", mmap=True)

    assert all(torch.equal((found[k] * 2).cpu(), v * 2) for k, v in x.items())


def test_content_of_another_storage_is_that_of_the_tensor() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    found = x.t().to("pjrt")
    found.untyped_storage().copy_(y.untyped_storage())
    y.zero_()

    assert torch.equal(found.cpu(), x.copy_(found.cpu().t()).t())
    assert found.any()
    assert not buffer_of(found).viewed


def test_storage_without_a_tensor_has_its_bytes() -> None:
    x = torch.arange(5).untyped_storage()
    storage = storage_of(x)

    assert storage.device.type == "pjrt"
    assert storage.cpu().tolist() == x.tolist()
    assert storage.nbytes() == 40
    assert buffer_behind(storage).spec.dtype is torch.uint8


def test_what_is_loaded_may_be_viewed_then() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    found = loaded(x)
    found[1].zero_()
    found.view(torch.int32)[2].fill_(0)
    x[1:] = 0

    assert torch.equal(found.cpu(), x)


@pytest.mark.parametrize("offset", [0, -1])
@pytest.mark.parametrize(
    ("size", "stride"),
    [((2, 3), (1,)), ((2, 3), (-1, 1)), ((2, 3), (3, 1, 1)), ((-2, 3), (3, 1)), ((2, 3), (3, 1))],
)
def test_sizes_that_a_fresh_storage_refuses(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    def tried(device: str) -> tuple[Any, ...]:
        storage = torch.UntypedStorage([1] * 24).to(device=torch.device(device))
        try:
            return (torch.empty(0, device=device).set_(storage, offset, size, stride).shape,)
        except Exception as error:
            return type(error), str(error).splitlines()[0]

    assert tried("pjrt") == tried("cpu")
