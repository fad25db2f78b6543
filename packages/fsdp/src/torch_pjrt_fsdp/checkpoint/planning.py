"""Who writes which part of a state, and where it lies in whose file."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import torch

from torch_pjrt_fsdp.checkpoint import layout
from torch_pjrt_fsdp.checkpoint.pieces import Box, Path, Piece
from torch_pjrt_fsdp.checkpoint.shared_memory import SharedMemory
from torch_pjrt_fsdp.checkpoint.writing import Entry, Job, Plan
from torch_pjrt_spmd import CheckpointError

FORMAT = 1
# What one process says of a tensor's part: name, shape, dtype, box.
Said = tuple[str, tuple[int, ...], torch.dtype, Box]
# What it says of its state: of the parts of tensors, and of each name the path.
Described = tuple[list[Said], list[tuple[str, Path]]]


class Planned:
    """Who writes what, and where it lies: the same while the state's tensors and names are.

    described   what this process has said when it was planned. None: nothing, or that plan is not to be used.
    """

    def __init__(self) -> None:
        self.described: Described | None = None
        self.plan = Plan([], [], [])
        self.n_bytes = 0
        self._own: list[int] = []  # of the pieces of this process, those that it writes
        self._at: list[int] = []  # where they lie in the memory
        self._ends: list[int] = []  # of each process's file, before objects
        self._n_entries: list[int] = []
        self._paths: dict[str, Path] = {}
        self._written_paths: list[list[Any]] = []
        self._tensors: dict[str, Any] = {}
        self._metadata: tuple[Any, bytes] = (None, b"")

    def make(self, described: Described, everywhere: list[Described], rank: int) -> None:
        """Plan anew, from what all processes say that they have."""
        self.described = None
        self._metadata = (None, b"")
        self._paths = {name: path for _, paths in everywhere for name, path in paths}
        self._written_paths = [[n, _written_path(path)] for n, path in self._paths.items()]
        owners = _owners([said for said, _ in everywhere])
        index, written = [], []
        self._ends, self._n_entries = [], []
        for r, (said, _) in enumerate(everywhere):
            own = [i for i, one in enumerate(said) if owners[one[0], one[3]] == r]
            entries, at, end = _entries([said[i] for i in own])
            self._ends.append(end)
            self._n_entries.append(len(entries))
            for n, (i, entry) in enumerate(zip(own, entries, strict=True)):
                index.append(_said_of(said[i], f"__{r}_0.distcp", entry))
                written.append((r, n))
            if r == rank:
                self._own, self._at = own, [entry.content[0] for entry in entries]
                self.plan = Plan(entries, [], [])
                self.n_bytes = at
        if rank == 0:
            self.plan = Plan(self.plan.entries, index, written)
        self.described = described  # last: what has raised on the way is no plan

    def own(self, pieces: list[Piece]) -> list[Piece]:
        """What this process writes."""
        return [pieces[i] for i in self._own]

    def placed(
        self, own: list[Piece], memory: SharedMemory
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What it writes, on the host, each with its place in the memory."""
        for piece, at in zip(own, self._at, strict=True):
            yield piece.content(), memory.tensor(at, piece.dtype, piece.box[1])

    def job(
        self,
        name: str,
        save: str,
        rank: int,
        size: int,
        objects: dict[str, bytes],
        lengths: list[dict[str, int]],
        keep: int | None,
        timeout_s: float,
    ) -> Job:
        """What is sent to the writing process."""
        owner: dict[str, int] = {}
        for r, of_rank in enumerate(lengths):
            for one in of_rank:
                owner.setdefault(one, r)
        index, written, own = [], [], []
        ends, numbers = list(self._ends), list(self._n_entries)
        for one, r in owner.items():
            begin, length = ends[r], lengths[r][one]
            ends[r] += length
            index.append({"name": one, "file": f"__{r}_0.distcp", "begin": begin, "length": length})
            written.append((r, numbers[r]))
            numbers[r] += 1
            if r == rank:
                own.append((begin, objects[one]))
        file = f"__{rank}_0.distcp" if own or self.plan.entries else None
        if rank:
            return Job(name, save, rank, size, file, own, {}, [], [], b"", None, timeout_s)
        files = {f"__{r}_0.distcp": end for r, end in enumerate(ends) if numbers[r]}
        about = {
            "format": FORMAT,
            "files": files,
            "paths": self._written_paths,
        }
        metadata = self._pytorchs(index)
        return Job(
            name, save, rank, size, file, own, about, index, written, metadata, keep, timeout_s
        )

    def _pytorchs(self, objects: list[dict[str, Any]]) -> bytes:
        """The file `.metadata` of `torch.distributed.checkpoint`."""
        if self._metadata[0] != objects:
            text = pickle.dumps(_metadata(self.plan.index, objects, self._paths))
            self._metadata = (objects, text)
        return self._metadata[1]


def _owners(everywhere: list[list[Said]]) -> dict[tuple[str, Box], int]:
    """Who writes a part that several have: who has least to write so far."""
    holders: dict[tuple[str, Box], list[int]] = {}
    sizes: dict[tuple[str, Box], int] = {}
    for rank, said in enumerate(everywhere):
        for name, _, dtype, box in said:
            holders.setdefault((name, box), []).append(rank)
            sizes[name, box] = torch.Size(box[1]).numel() * dtype.itemsize
    load = [0] * len(everywhere)
    owners = {}
    for part in sorted(holders, key=lambda part: len(holders[part])):
        owners[part] = rank = min(holders[part], key=lambda r: load[r])
        load[rank] += sizes[part] + 1
    return owners


def _entries(said: list[Said]) -> tuple[list[Entry], int, int]:
    """The entries of a file, how much memory their contents take, and where the file ends."""
    entries = []
    at = end = 0
    for _, _, dtype, (_, sizes) in said:
        before, after, checked = layout.around(dtype, tuple(sizes))
        n = torch.Size(sizes).numel() * dtype.itemsize
        begin = end + -end % layout.ALIGNMENT
        entries.append(Entry(begin, before, (at, n), after, checked))
        end = begin + len(before) + n + len(after)
        at += n + -n % layout.ALIGNMENT
    return entries, at, end


def _said_of(said: Said, file: str, entry: Entry) -> dict[str, Any]:
    """What the index says of a tensor's part."""
    name, shape, dtype, (offset, sizes) = said
    n = entry.content[1]
    return {
        "name": name,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
        "offset": list(offset),
        "sizes": list(sizes),
        "file": file,
        "begin": entry.begin,
        "length": len(entry.before) + n + len(entry.after),
        "at": entry.begin + len(entry.before),
        "bytes": n,
    }


def _written_path(path: Path) -> list[Any]:
    """A path as JSON has it: a place in a list is a list."""
    for key in path:
        if not isinstance(key, (str, int, tuple)) or isinstance(key, bool):
            raise CheckpointError(
                f"A key of the state is {key!r}.",
                saw=f"{type(key).__name__}, in {list(path)}",
                expected="a text or a whole number",
            )
    return [list(key) if isinstance(key, tuple) else key for key in path]


def _metadata(
    index: list[dict[str, Any]], objects: list[dict[str, Any]], paths: dict[str, Path]
) -> Any:
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )

    described: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    for entry in index:
        name, offset = entry["name"], torch.Size(entry["offset"])
        if name not in described:
            properties = TensorProperties(dtype=getattr(torch, entry["dtype"]))
            described[name] = TensorStorageMetadata(properties, torch.Size(entry["shape"]), [])
        chunks = described[name].chunks
        chunks.append(ChunkStorageMetadata(offset, torch.Size(entry["sizes"])))
        where = _StorageInfo(entry["file"], entry["begin"], entry["length"])
        stored[MetadataIndex(name, offset, len(chunks) - 1)] = where
    for entry in objects:
        described[entry["name"]] = BytesStorageMetadata()
        stored[MetadataIndex(entry["name"])] = _StorageInfo(
            entry["file"], entry["begin"], entry["length"]
        )
    as_text = {
        name: tuple(key[0] if isinstance(key, tuple) else str(key) for key in path)
        for name, path in paths.items()
    }
    return Metadata(described, as_text, stored, StorageMeta(), "1.0.0")
