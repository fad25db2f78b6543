"""How a process's file is laid out: what PyTorch's `torch.distributed.checkpoint` reads, tensor by tensor.

Each tensor is what `torch.save` would write: a zip file, whose records are stored as they are. But its bytes
are not made here. What comes before and after the content is, and the writing process puts the content
between, with its checksum, which the zip format has room for.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch

from torch_pjrt_fsdp.checkpoint.pieces import Box

ALIGNMENT = 64  # of contents in a file, and of pieces in the shared memory
MOST_BYTES = 1 << 30  # of a piece: zip files of more than 4 GiB have another format
_LOCAL, _CENTRAL, _END, _DESCRIPTOR = (
    struct.Struct("<IHHHHHIIIHH"),
    struct.Struct("<IHHHHHHIIIHHHHHII"),
    struct.Struct("<IHHHHIIH"),
    struct.Struct("<IIII"),
)
_PADDING = struct.Struct("<HH")
_CRC_FOLLOWS, _UTF_8 = 8, 0x800


def divided(box: Box, itemsize: int, most: int) -> Iterator[Box]:
    """The box in parts of at most so many bytes, along its first dims."""
    offset, sizes = box
    n_bytes = math.prod(sizes) * itemsize
    if n_bytes <= most:
        yield box
        return
    dim = next(i for i, n in enumerate(sizes) if n > 1)
    n = sizes[dim]
    at_once = max(n * most // n_bytes, 1)
    for i in range(0, n, at_once):
        some = (
            (*offset[:dim], offset[dim] + i, *offset[dim + 1 :]),
            (*sizes[:dim], min(at_once, n - i), *sizes[dim + 1 :]),
        )
        yield from divided(some, itemsize, most)


@lru_cache(maxsize=4096)
def around(dtype: torch.dtype, sizes: tuple[int, ...]) -> tuple[bytes, bytes, tuple[int, ...]]:
    """What `torch.save` writes before a contiguous tensor's content and after it; where its checksum goes.

    The first is a multiple of `ALIGNMENT` bytes long. The places of the checksum are in the second.
    """
    n = math.prod(sizes) * dtype.itemsize
    before = bytearray()
    records: list[tuple[str, int, int, int, int]] = []  # name, checksum, size, where, flags

    def local(name: str, crc: int, size: int, flags: int, align: bool) -> None:
        label = f"archive/{name}".encode()
        length = _LOCAL.size + len(label)
        pad = -(len(before) + length + _PADDING.size) % ALIGNMENT if align else 0
        extra = _PADDING.pack(0x4246, pad) + b"Z" * pad if align else b""
        records.append((name, crc, size, len(before), flags))
        before.extend(
            _LOCAL.pack(0x04034B50, 20, flags, 0, 0, 0, crc, size, size, len(label), len(extra))
        )
        before.extend(label + extra)

    for name, text in (("data.pkl", _pickled(dtype, sizes)), ("byteorder", b"little")):
        local(name, zlib.crc32(text), len(text), _UTF_8, align=False)
        before.extend(text)
    local("data/0", 0, n, _UTF_8 | _CRC_FOLLOWS, align=True)
    head = bytes(before)

    after = bytearray(_DESCRIPTOR.pack(0x08074B50, 0, n, n))
    checked = [4]
    version = b"3\n"
    label = b"archive/version"
    records.append(
        ("version", zlib.crc32(version), len(version), len(head) + n + len(after), _UTF_8)
    )
    after += _LOCAL.pack(
        *(0x04034B50, 20, _UTF_8, 0, 0, 0, zlib.crc32(version), len(version), len(version)),
        *(len(label), 0),
    )
    after += label + version
    directory = len(head) + n + len(after)
    for name, crc, size, where, flags in records:
        label = f"archive/{name}".encode()
        if flags & _CRC_FOLLOWS:
            checked.append(len(after) + 16)
        after += _CENTRAL.pack(
            *(0x02014B50, 20, 20, flags, 0, 0, 0, crc, size, size, len(label)),
            *(0, 0, 0, 0, 0, where),
        )
        after += label
    length = len(head) + n + len(after) - directory
    after += _END.pack(0x06054B50, 0, 0, len(records), len(records), length, directory, 0)
    return head, bytes(after), tuple(checked)


class _Rebuilt:
    """What a tensor's pickle calls."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return self._call


class _Content:
    """Stands for the storage, which the pickle has outside."""

    def __init__(self, *named: Any) -> None:
        self.named = named


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.named if isinstance(obj, _Content) else None


def _pickled(dtype: torch.dtype, sizes: tuple[int, ...]) -> bytes:
    """What `torch.save` says of a contiguous tensor."""
    utils: Any = import_module("torch._utils")
    strides = tuple(math.prod([max(n, 1) for n in sizes[i + 1 :]]) for i in range(len(sizes)))
    kinds: Any = torch.storage._dtype_to_storage_type_map()
    numel = math.prod(sizes)
    if dtype in kinds:
        storage = _Content("storage", getattr(torch, kinds[dtype]), "0", "cpu", numel)
        call = (
            utils._rebuild_tensor_v2,
            (storage, 0, sizes, strides, False, OrderedDict()),
        )
    else:
        storage = _Content("storage", torch.UntypedStorage, "0", "cpu", numel * dtype.itemsize)
        call = (
            utils._rebuild_tensor_v3,
            (storage, 0, sizes, strides, False, OrderedDict(), dtype),
        )
    text = io.BytesIO()
    _Pickler(text, protocol=2).dump(_Rebuilt(*call))
    return text.getvalue()
