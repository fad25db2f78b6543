"""What a checkpoint has, by its index; and reading some of it, verified.

A checkpoint that PyTorch has written by itself, without an index, is read by its file `.metadata`, of which
nothing but PyTorch's own classes is loaded. Nothing of it is verified.
"""

from __future__ import annotations

import io
import os
import pickle
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from torch_pjrt_fsdp.checkpoint.pieces import Box, Path, name_of
from torch_pjrt_fsdp.checkpoint.storage import INDEX, METADATA, Bytes, storage_of
from torch_pjrt_fsdp.checkpoint.writing import unsealed
from torch_pjrt_spmd import CheckpointError

_MOST_CHECKED = 1 << 24  # bytes that are looked at, at once, for a checksum


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a tensor, in a file. at: where its content is; None: within what `torch.save` wrote."""

    box: Box
    file: str
    begin: int
    length: int
    at: int | None
    crc32: int | None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: list[Chunk]

    @property
    def n_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What `torch.save` wrote of something else, in a file."""

    name: str
    file: str
    begin: int
    length: int
    crc32: int | None


class Stored:
    """A checkpoint that is there.

    tensors, objects   by name. paths: of each name, its keys.
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = True) -> None:
        self.path = os.fspath(path).rstrip("/")
        self._verify = verify
        self._storage = storage_of(self.path)
        self._folder: str = self._storage.folder  # type: ignore[attr-defined]
        self._files: dict[str, Bytes] = {}
        self._sizes: dict[str, int] = {}
        self._verified: set[tuple[str, int]] = set()
        self.tensors: dict[str, StoredTensor] = {}
        self.objects: dict[str, StoredObject] = {}
        self.paths: dict[str, Path] = {}
        try:
            text = self._storage.read(f"{self._folder}/{INDEX}")
        except (FileNotFoundError, NotADirectoryError):
            self._read_metadata()
            return
        index = unsealed(text)
        if index is None:
            raise self._damaged(INDEX, "its checksum is another one")
        self._sizes = index["files"]
        self.paths = {
            name: tuple(tuple(k) if isinstance(k, list) else k for k in path)
            for name, path in index["paths"]
        }
        for entry in index["entries"]:
            self._take(entry)
        self.paths = _paths_of(self.names(), self.paths)

    def _take(self, entry: dict[str, Any]) -> None:
        name = entry["name"]
        if "at" not in entry:
            self.objects[name] = StoredObject(
                name, entry["file"], entry["begin"], entry["length"], entry["crc32"]
            )
            return
        tensor = self.tensors.get(name)
        if tensor is None:
            shape, dtype = tuple(entry["shape"]), getattr(torch, entry["dtype"])
            tensor = self.tensors[name] = StoredTensor(name, shape, dtype, [])
        box = (tuple(entry["offset"]), tuple(entry["sizes"]))
        where = (entry["file"], entry["begin"], entry["length"], entry["at"], entry["crc32"])
        tensor.chunks.append(Chunk(box, *where))

    def _read_metadata(self) -> None:
        try:
            text = self._storage.read(f"{self._folder}/{METADATA}")
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(
                "There is no checkpoint.", saw=self.path, expected=f"a folder with `{INDEX}`"
            ) from None
        metadata = _OfPyTorch(io.BytesIO(text)).load()
        chunks: dict[str, list[Chunk]] = {}
        for index, where in metadata.storage_data.items():
            at = (where.relative_path, where.offset, where.length)
            said = metadata.state_dict_metadata[index.fqn]
            if not hasattr(said, "chunks"):
                self.objects[index.fqn] = StoredObject(index.fqn, *at, None)
                continue
            offset = tuple(index.offset or (0,) * len(said.size))
            sizes = next(tuple(c.sizes) for c in said.chunks if tuple(c.offsets) == offset)
            chunks.setdefault(index.fqn, []).append(Chunk((offset, sizes), *at, None, None))
        for name, said in metadata.state_dict_metadata.items():
            if hasattr(said, "chunks"):
                dtype, shape = said.properties.dtype, tuple(said.size)
                self.tensors[name] = StoredTensor(name, shape, dtype, chunks.get(name, []))
        for name, path in (metadata.planner_data or {}).items():
            keys = tuple((key,) if isinstance(key, int) else key for key in path)
            self.paths[name] = keys
        self.paths = {name: self.paths.get(name, (name,)) for name in self.names()}

    def names(self) -> list[str]:
        """All of them."""
        return [*self.tensors, *self.objects]

    def object(self, name: str) -> Any:
        """An object, loaded with `weights_only=True`."""
        found = self.objects[name]
        part = self._file(found.file).part(found.begin, found.length)
        self._check(name, found.file, found.begin, found.length, found.crc32)
        return torch.load(io.BytesIO(bytes(part)), weights_only=True, map_location="cpu")

    def read(self, name: str, box: Box, into: torch.Tensor | None = None) -> torch.Tensor:
        """A part of a tensor, on the host, to be read only: where one chunk has it all, that is the file's.

        into   a tensor of the part's shape, which gets it instead.
        """
        tensor = self.tensors[name]
        overlaps = [
            (chunk, common) for chunk in tensor.chunks if (common := _common(chunk.box, box))
        ]
        if len(overlaps) == 1 and overlaps[0][1] == box and into is None:
            return _within(self._chunk(tensor, overlaps[0][0]), overlaps[0][0].box, box)
        if into is None:
            into = torch.empty(box[1], dtype=tensor.dtype, device="cpu")
        n = 0
        for chunk, common in overlaps:
            part = _within(self._chunk(tensor, chunk), chunk.box, common)
            _within(into, box, common).copy_(part)
            n += part.numel()
            self.done(chunk)
        if n != into.numel():
            raise self._damaged(
                "its index", f"of the tensor {name!r} it has {n} of {into.numel()} elements"
            )
        return into

    def done(self, chunk: Chunk) -> None:
        """It has been read, for now."""
        if chunk.at is not None:
            self._file(chunk.file).done(chunk.begin, chunk.length)

    def done_with(self, name: str) -> None:
        """All of a tensor has been read."""
        for chunk in self.tensors[name].chunks:
            self.done(chunk)

    def _chunk(self, tensor: StoredTensor, chunk: Chunk) -> torch.Tensor:
        file = self._file(chunk.file)
        if chunk.at is None:
            text = io.BytesIO(file.part(chunk.begin, chunk.length))
            return torch.load(text, weights_only=True, map_location="cpu")
        n = torch.Size(chunk.box[1]).numel() * tensor.dtype.itemsize
        if not n:
            return torch.empty(chunk.box[1], dtype=tensor.dtype, device="cpu")
        if (chunk.file, chunk.begin) not in self._verified:
            self._check(tensor.name, chunk.file, chunk.at, n, chunk.crc32)
            self._verified.add((chunk.file, chunk.begin))
        content = torch.frombuffer(file.part(chunk.at, n), dtype=torch.uint8)
        return content.view(tensor.dtype).view(chunk.box[1])

    def _check(self, name: str, file: str, begin: int, n: int, crc32: int | None) -> None:
        """Raise if so many bytes of a file are not what was written."""
        content = self._file(file)
        if begin + n > content.size:
            raise self._damaged(file, f"{name!r} is not all there")
        if crc32 is None or not self._verify:
            return
        crc = 0
        for i in range(begin, begin + n, _MOST_CHECKED):
            some = min(_MOST_CHECKED, begin + n - i)
            crc = zlib.crc32(content.part(i, some), crc)
            content.done(i, some)
        if crc != crc32:
            raise self._damaged(file, f"the checksum of {name!r} is {crc:08x}", f"{crc32:08x}")

    def _file(self, name: str) -> Bytes:
        if name not in self._files:
            try:
                file = self._files[name] = self._storage.open(f"{self._folder}/{name}")
            except FileNotFoundError:
                raise self._damaged(name, "there is no such file") from None
            expected = self._sizes.get(name, file.size)
            if file.size != expected:
                raise self._damaged(name, f"{file.size} bytes", f"{expected} bytes")
        return self._files[name]

    def _damaged(self, file: str, saw: str, expected: str | None = None) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint is damaged: {self.path}/{file}",
            saw=saw,
            expected=expected,
            hint="load another one; CheckpointManager.steps() lists those that there are",
        )


_PYTORCHS = {
    "torch.distributed.checkpoint.metadata": {
        *(
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
        ),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict", "ChainMap"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},  # Python 3.13's name
}


class _OfPyTorch(pickle.Unpickler):
    """Loads what PyTorch writes into `.metadata`, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _PYTORCHS.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise CheckpointError(
            f"The file `{METADATA}` names what is not loaded.", saw=f"{module}.{name}"
        )


def _paths_of(names: list[str], paths: dict[str, Path]) -> dict[str, Path]:
    """The paths of these names: an index of an earlier version may lack one, and have others."""
    there = {*names}
    found = {name: path for name, path in paths.items() if name in there}
    if len(found) < len(there):
        known = {name_of(path[:n]): path[:n] for path in paths.values() for n in range(len(path))}
        for name in there - {*found}:
            keys = name.split(".")
            n = next(
                n for n in range(len(keys) - 1, -1, -1) if ".".join(keys[:n]) in known or not n
            )
            rest = (int(key) if key.isdecimal() else key for key in keys[n:])
            found[name] = (*known.get(".".join(keys[:n]), ()), *rest)
    return found


def _common(one: Box, other: Box) -> Box | None:
    """What two parts of a tensor have in common; None if nothing."""
    begins = tuple(max(a, b) for a, b in zip(one[0], other[0], strict=True))
    ends = (min(a + n, b + m) for a, n, b, m in zip(*one, *other, strict=True))
    sizes = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
    return (begins, sizes) if all(n > 0 for n in sizes) else None


def _within(tensor: torch.Tensor, box: Box, part: Box) -> torch.Tensor:
    """Of a tensor that is `box` of a larger one, what is `part` of that."""
    for dim, (begin, n) in enumerate(zip(*part, strict=True)):
        if n != box[1][dim]:
            tensor = tensor.narrow(dim, begin - box[0][dim], n)
    return tensor
