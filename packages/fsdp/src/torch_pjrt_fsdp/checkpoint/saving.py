"""Saving: what the training process does, and waits for.

It has the device copy the tensors that are its own to write, and returns. A thread brings the copies into
memory that it shares with the writing process, and sends that a job. The memory and the plan stay for the
next save. Where the device has no room for copies, `save` does the thread's work itself.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch

from torch_pjrt.extend import PartsLater
from torch_pjrt_fsdp.checkpoint import layout, ranks
from torch_pjrt_fsdp.checkpoint.background import HandingOver, WritingProcess, WritingThread
from torch_pjrt_fsdp.checkpoint.pieces import (
    OfHost,
    Path,
    Piece,
    asked,
    is_stateful,
    leaves,
    name_of,
    pieces_of,
)
from torch_pjrt_fsdp.checkpoint.planning import Planned
from torch_pjrt_fsdp.checkpoint.shared_memory import SharedMemory
from torch_pjrt_fsdp.checkpoint.writing import failed
from torch_pjrt_spmd import CheckpointError

_MOST_BY_ONE_THREAD = 1 << 24  # bytes


def save_checkpoint(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Save a state, and wait until it is complete: at `path`, a folder that is not there before.

    state   tensors of any device, spread over a mesh or not, DTensors, nested dicts and lists of them, plain
            objects, and what has `state_dict`: modules, optimizers, schedules.
    path    a folder that all processes see, or a URL of fsspec's. Another checkpoint there is replaced.

    Each process writes the parts that it has; of copies one process writes one. All of a run must call it.
    The folder is one of `torch.distributed.checkpoint`. Raises `CheckpointError` for what cannot be written
    or could not be loaded, and then there is no such folder.

        save_checkpoint({"model": model, "optimizer": optimizer}, "/shared/run/step-100")
    """
    folder, name = _split(path)
    with Saver(folder) as saver:
        saver.save(name, state)


class Saver:
    """Saves states to a folder, at most one at a time, while the caller goes on.

    folder     where the checkpoints are, or a URL of fsspec's.
    timeout_s  how long to wait for other processes' parts.

    `save` returns when the state may change again. The rest is done by another process, which begins with
    this object and ends with `close`, or with this process.
    """

    def __init__(self, folder: str | os.PathLike[str], *, timeout_s: float = 600.0) -> None:
        self.folder = os.fspath(folder)
        self.blocked_s = 0.0  # how long the last `save` took
        self._timeout_s = timeout_s
        self._memory = SharedMemory()
        self._planned = Planned()
        is_own = self.folder.startswith("memory://")
        self._writer: WritingProcess | WritingThread = (
            WritingThread() if is_own else WritingProcess()
        )
        self._handing_over = HandingOver()
        self._texts: dict[str, tuple[bytes, bytes]] = {}
        self._flight = _Flight(self._handing_over, self._writer)
        # Also where nobody closes it, and where the interpreter ends.
        self._finish = weakref.finalize(self, self._flight.end)

    def save(self, name: str, state: Mapping[str, Any], *, keep: int | None = None) -> None:
        """Begin to save a state under a name; waits for the save before. All processes must call it.

        keep   how many checkpoints of steps stay (`step-12`), this one counted. None: all.

        Raises `CheckpointError` for what cannot be saved, and if the save before has failed.
        """
        rank, size = ranks.rank_and_size()
        parts = PartsLater()
        found: _Found = [], {}, {}
        fault = None
        begun = time.perf_counter()
        try:
            self.wait()
            begun = time.perf_counter()
            found = _pieces(state, parts, self._texts)
        except Exception as error:
            fault = error
        pieces, objects, paths = found
        planned = self._planned
        described = [(p.name, p.shape, p.dtype, p.box) for p in pieces], list(paths.items())
        is_new = described != planned.described
        lengths = {name: len(text) for name, text in objects.items()}
        save = os.urandom(4).hex()
        said = ranks.all_said((is_new, lengths, save, name, fault and f"{fault}"))
        try:
            if fault is not None:
                raise fault
        finally:
            del fault  # its traceback holds this frame, and with it the state
        _check_all([one[3] for one in said], [one[4] for one in said])
        if any(one[0] for one in said):
            self._memory.forget()
            planned.make(described, ranks.all_said(described), rank)
        own = planned.own(pieces)
        of_all = [one[1] for one in said]
        save = said[0][2]

        def hand_over() -> None:
            try:
                self._memory.resize(planned.n_bytes)
                for piece, into in planned.placed(own, self._memory):
                    _copy(piece, into)
                own.clear()  # what was copied on the device goes now
                job = planned.job(name, save, rank, size, objects, of_all, keep, self._timeout_s)
                self._writer.begin(self.folder, job, planned.plan, self._memory)
            except BaseException as error:
                tell(error)
                raise

        def tell(error: BaseException) -> None:
            """The other processes wait for what this one was to write. The next save plans anew."""
            planned.described = None
            if size > 1:
                job = failed(name, save, rank, size, self._timeout_s, f"{error}")
                self._writer.begin(self.folder, job, planned.plan, self._memory)
                self._writer.result()

        try:
            is_copied = _copied(own, parts)
        except BaseException as error:
            tell(error)
            raise
        if is_copied:
            self._flight.name = name
            self._handing_over.begin(hand_over)
        else:
            hand_over()
            self._flight.name = name
        self.blocked_s = time.perf_counter() - begun

    def wait(self) -> None:
        """Until the last save is complete. Raises `CheckpointError` if it has failed."""
        self._flight.wait()

    @property
    def in_flight(self) -> bool:
        """Whether a save has begun that is not known to be complete."""
        is_done = self._handing_over.is_done() and self._writer.is_done()
        return self._flight.name is not None and not is_done

    def close(self) -> None:
        """Wait for the last save, and end the process that writes. Raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._finish()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Flight:
    """The save that has begun, by its name, until somebody has waited for it and knows what became of it."""

    def __init__(self, handing_over: HandingOver, writer: WritingProcess | WritingThread) -> None:
        self.name: str | None = None
        self._handing_over, self._writer = handing_over, writer
        self._maker = os.getpid()

    def wait(self) -> None:
        """Until it is complete. Raises `CheckpointError`, once, if it has failed."""
        if self.name is None:
            return
        fault = self._handing_over.result()
        error = self._writer.result() if fault is None else None
        name, self.name = self.name, None
        if fault is not None:
            raise CheckpointError(
                f"The state for the checkpoint `{name}` could not be read.", saw=str(fault).strip()
            ) from fault
        if error is not None:
            raise CheckpointError(
                f"The checkpoint `{name}` could not be written.", saw=error.strip()
            )

    def end(self) -> None:
        """Wait, and end who writes. Nobody hears an error here, so a failed save is said on stderr."""
        if self._maker == os.getpid():  # a forked process has only a copy
            try:
                self.wait()
            except CheckpointError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
        self._handing_over.close()
        self._writer.close()


_Found = tuple[list[Piece], dict[str, bytes], dict[str, Path]]


def _check_all(names: list[str], faults: list[str | None]) -> None:
    """Raise in all processes what is wrong in one of them."""
    for rank, fault in enumerate(faults):
        if fault is not None:
            raise CheckpointError(f"Process {rank} cannot save its state.", saw=fault)
    if len(set(names)) > 1:
        raise CheckpointError(
            "The processes of the run save different checkpoints.",
            saw=", ".join(sorted(set(names))),
        )


def _split(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The folder that a checkpoint is in, and its name."""
    text = os.fspath(path)
    if "://" in text:
        folder, _, name = text.rstrip("/").rpartition("/")
        return folder, name
    text = os.path.abspath(text)
    return os.path.dirname(text), PurePosixPath(text).name


def _copied(own: list[Piece], parts: PartsLater) -> bool:
    """Have copies of what the pieces are of; whether these may be read later, by a thread."""
    for reads in [piece.read for piece in own]:
        if isinstance(reads, OfHost):
            reads.copy()
    return parts.copy([piece.read for piece in own])


def _pieces(
    state: Mapping[str, Any], parts: PartsLater, texts: dict[str, tuple[bytes, bytes]]
) -> _Found:
    """A state's parts of tensors, its other objects as bytes, and the path of each name.

    texts   of plain objects of the save before what they were, and their bytes.
    """
    pieces: list[Piece] = []
    objects: dict[str, bytes] = {}
    paths: dict[str, Path] = {}
    for outer, value in asked(state):
        for inner, leaf in leaves(value.state_dict() if is_stateful(value) else value):
            path = (*outer, *inner)
            name = name_of(path)
            if name in paths:
                raise CheckpointError(
                    f"Two things in the state have the name {name!r}.",
                    saw=f"{list(paths[name])} and {list(path)}",
                    hint="a key with a dot in it, or a number and its text, are not told apart",
                )
            paths[name] = path
            if isinstance(leaf, torch.Tensor):
                if leaf.device.type == "meta" or leaf.layout is not torch.strided:
                    raise CheckpointError(
                        f"The tensor {name!r} cannot be saved.",
                        saw=f"{leaf.layout} on {leaf.device}",
                        expected="a dense one that has memory",
                    )
                for piece in pieces_of(name, leaf, parts):
                    pieces += _divided(piece)
            else:
                objects[name] = _text_of(name, leaf, texts)
    return pieces, objects, paths


def _copy(piece: torch.Tensor, into: torch.Tensor) -> None:
    """By one thread where it is small: threads wait for each other longer than that takes."""
    if piece.nbytes < _MOST_BY_ONE_THREAD and piece.is_contiguous():
        np.copyto(_as_bytes(into), _as_bytes(piece))
    else:
        into.copy_(piece)


def _as_bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(-1).view(torch.uint8).numpy()


def _divided(piece: Piece) -> list[Piece]:
    if math.prod(piece.box[1]) * piece.dtype.itemsize <= layout.MOST_BYTES:
        return [piece]
    found = []
    for box in layout.divided(piece.box, piece.dtype.itemsize, layout.MOST_BYTES):
        begin = tuple(a - b for a, b in zip(box[0], piece.box[0], strict=True))
        found.append(Piece(piece.name, piece.shape, piece.dtype, box, piece.read, begin))
    return found


_PLAIN = (bool, int, float, str, bytes, type(None))


def _is_plain(value: Any) -> bool:
    """Whether it is made of numbers and texts alone, so that equal pickles are equal objects."""
    cls = value.__class__
    if cls in (list, tuple):
        return all(map(_is_plain, value))
    if cls is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return cls in _PLAIN


def _text_of(name: str, value: Any, texts: dict[str, tuple[bytes, bytes]]) -> bytes:
    """Its bytes, those of the save before if it is what it was then."""
    if not _is_plain(value):
        return _bytes_of(name, value)
    now = pickle.dumps(value)
    was, text = texts.get(name, (None, b""))
    if was != now:
        text = _bytes_of(name, value)
        texts[name] = now, text
    return text


def _bytes_of(name: str, value: Any) -> bytes:
    text = io.BytesIO()
    try:
        torch.save(value, text)
        text.seek(0)
        torch.load(text, weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(
            f"{name!r} could not be loaded again.",
            saw=f"{type(value).__name__}: {str(error).splitlines()[0][:200]}",
            expected="numbers, texts, tensors, and lists, tuples and dicts of them",
            hint="torch.serialization.add_safe_globals([...]) names a class that may be loaded",
        ) from error
    return text.getvalue()
