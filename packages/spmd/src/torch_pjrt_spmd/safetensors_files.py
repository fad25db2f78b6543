"""Files of safetensors, read and written part by part: neither the host nor a chip has a whole tensor.

A file is eight bytes that say how long its header is, the header, which is JSON (of each tensor its dtype,
shape, and where its bytes begin and end), and the bytes of all tensors in row-major order.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torch_pjrt.errors import TorchPjrtError
from torch_pjrt.extend import (
    buffer_of,
    download_parts,
    is_pjrt,
    spec_and_offset,
    store,
    upload_parts,
)
from torch_pjrt_spmd import marks

Paths = str | os.PathLike[str]

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
}
# Bytes of a file that are mapped at once, but for rows of more.
_MOST_MAPPED = 1 << 23
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class CheckpointError(TorchPjrtError, RuntimeError):
    """What a file has and what is to be loaded from it or saved to it do not fit."""


def load_safetensors(
    into: nn.Module | Mapping[str, torch.Tensor],
    paths: Paths | Iterable[Paths],
    *,
    strict: bool = True,
) -> tuple[list[str], list[str]]:
    """Fill tensors, spread over a mesh or not, from files of safetensors; each chip gets its own part alone.

    into    a module, or tensors by the names that they have in the files.
    paths   a file, several, or the `.index.json` of several.
    strict  whether a name that only one of the two has is an error.

    Returns the names that are in no file, and those that are nobody's. A marked tensor is read in the parts
    that its chips have; dtypes may differ and are converted. Needs `pip install safetensors`.

    Raises `CheckpointError`, before anything is loaded, for names that do not fit, tensors of other shapes,
    and tensors without memory (`model.to_empty(device="pjrt")` gives it to them).

        load_safetensors(model, "model.safetensors.index.json")
    """
    safe_open = _safe_open()
    wanted = _tensors_of(into)
    with ExitStack() as opened, torch.no_grad():
        files = [opened.enter_context(safe_open(path, "pt")) for path in _files(paths)]
        found = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        missing = _missing(wanted, found)
        unexpected = [name for name in found if name not in wanted]
        shapes = {
            name: tuple(found[name].get_slice(name).get_shape()) for name in wanted if name in found
        }
        _check(wanted, shapes, (missing, unexpected) if strict else ((), ()))
        for name in shapes:
            _fill(wanted[name], found[name], name)
    return missing, unexpected


def save_safetensors(
    tensors: nn.Module | Mapping[str, torch.Tensor],
    path: Paths,
    *,
    most_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write tensors, spread over a mesh or not, to a file of safetensors; the host has one part at a time.

    tensors     a module, or tensors by name, of any device.
    most_bytes  of tensors in one file; what is more goes into several, with `path` and `.index.json` for
                their index. None: all into one.
    metadata    texts for the header.

    Returns the files of tensors. Each comes into its place when it is complete. Raises `CheckpointError` for
    a tensor without memory or of a dtype that the format lacks.

        save_safetensors(model, "model.safetensors")
    """
    named = _tensors_of(tensors)
    for name, tensor in named.items():
        if tensor.dtype not in _DTYPES or tensor.device.type == "meta":
            raise CheckpointError(
                f"The tensor {name!r} cannot be saved.",
                saw=f"{tensor.dtype} on {tensor.device}",
                expected=f"one with memory, of {', '.join(_DTYPES.values())}",
            )
    sources = {name: source_of(tensor) for name, tensor in named.items()}
    return write_sources(sources, path, most_bytes=most_bytes, metadata=metadata)


@dataclass(frozen=True)
class Source:
    """What is written as a tensor. parts: where each lies, and its content on the host, to be read only."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[tuple[tuple[slice, ...], torch.Tensor]]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def source_of(tensor: torch.Tensor) -> Source:
    """Of a tensor of any device."""

    def parts() -> Iterable[tuple[tuple[slice, ...], torch.Tensor]]:
        if is_pjrt(tensor):
            return download_parts(tensor)
        whole = tuple(slice(0, n) for n in tensor.shape)
        return [(whole, tensor.cpu().resolve_conj().resolve_neg())]

    return Source(tensor.dtype, tuple(tensor.shape), parts)


def write_sources(
    sources: Mapping[str, Source],
    path: Paths,
    *,
    most_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[Path]:
    """As `save_safetensors`, of what gives its parts by itself."""
    whole = Path(path)
    parts = _divided(sources, most_bytes)
    if len(parts) == 1:
        _write(sources, whole, metadata)
        return [whole]
    files = [
        whole.with_name(f"{whole.stem}-{i + 1:05}-of-{len(parts):05}{whole.suffix}")
        for i in range(len(parts))
    ]
    for part, file in zip(parts, files, strict=True):
        _write(part, file, metadata)
    index = {
        "metadata": {"total_size": sum(source.nbytes for source in sources.values())},
        "weight_map": {n: f.name for part, f in zip(parts, files, strict=True) for n in part},
    }
    whole.with_name(whole.name + ".index.json").write_text(json.dumps(index, indent=2))
    return files


def _safe_open() -> Callable[..., Any]:
    try:
        return import_module("safetensors").safe_open
    except ImportError as error:
        raise ImportError(
            "load_safetensors needs the package safetensors: pip install 'torch-pjrt-spmd[safetensors]'"
        ) from error


def _tensors_of(of: nn.Module | Mapping[str, Any]) -> dict[str, torch.Tensor]:
    named = of.state_dict() if isinstance(of, nn.Module) else of
    return {name: t.detach() for name, t in named.items() if isinstance(t, torch.Tensor)}


def _files(paths: Paths | Iterable[Paths]) -> list[Path]:
    given = [Path(paths)] if isinstance(paths, (str, os.PathLike)) else list(map(Path, paths))
    found: dict[Path, None] = {}
    for path in given:
        if path.suffix == ".json":
            names = json.loads(path.read_text())["weight_map"].values()
            found.update((path.parent / name, None) for name in names)
        else:
            found[path] = None
    return list(found)


def _missing(wanted: Mapping[str, torch.Tensor], found: Mapping[str, Any]) -> list[str]:
    """Names that no file has, but for those of tensors that share memory with one that a file has."""
    there = {_memory_of(t) for name, t in wanted.items() if name in found}
    return [name for name, t in wanted.items() if name not in found and _memory_of(t) not in there]


def _memory_of(tensor: torch.Tensor) -> Any:
    if is_pjrt(tensor):
        return id(buffer_of(tensor))
    return tensor.data_ptr() or id(tensor)


def _check(
    wanted: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Sequence[int]],
    names: tuple[Sequence[str], Sequence[str]],
) -> None:
    for happened, wrong in (
        ("Tensors are in no file.", names[0]),
        ("The files have tensors that are nobody's.", names[1]),
    ):
        if wrong:
            more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
            raise CheckpointError(
                happened, saw=", ".join(wrong[:8]) + more, hint="strict=False leaves them out"
            )
    for name, shape in shapes.items():
        if wanted[name].device.type == "meta":
            raise CheckpointError(
                f"The tensor {name!r} has no memory to load into.",
                saw="device meta",
                hint='model.to_empty(device="pjrt"), then mark_sharding, then load',
            )
        if tuple(wanted[name].shape) != tuple(shape):
            raise CheckpointError(
                f"The tensor {name!r} has another shape in the file.",
                saw=f"{list(shape)}",
                expected=f"{list(wanted[name].shape)}",
            )


def _fill(tensor: torch.Tensor, file: Any, name: str) -> None:
    if not is_pjrt(tensor) or not tensor.numel():
        tensor.copy_(file.get_tensor(name))
        return
    buffer = buffer_of(tensor)
    spec, offset = spec_and_offset(tensor)
    how = None if offset or spec != buffer.spec else marks.mark_of_buffer(buffer)
    if how is None:
        tensor.copy_(file.get_tensor(name))
        return
    part_at = file.get_slice(name)

    def part(index: tuple[slice, ...]) -> torch.Tensor:
        return part_at[index] if index else file.get_tensor(name)

    store(tensor, upload_parts(spec, how, part))


def _divided(sources: Mapping[str, Source], most_bytes: int | None) -> list[dict[str, Source]]:
    parts: list[dict[str, Source]] = [{}]
    size = 0
    for name, source in sources.items():
        if most_bytes is not None and parts[-1] and size + source.nbytes > most_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = source
        size += source.nbytes
    return parts


def _write(sources: Mapping[str, Source], path: Path, metadata: Mapping[str, str] | None) -> None:
    """The widest dtypes come first, so that each tensor lies at a multiple of its elements' bytes."""
    ordered = sorted(sources.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, source in ordered:
        begin, end = end, end + source.nbytes
        header[name] = {
            "dtype": _DTYPES[source.dtype],
            "shape": list(source.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            file.truncate(8 + len(text) + end)
        for name, source in ordered:
            if source.nbytes:
                begin = 8 + len(text) + header[name]["data_offsets"][0]
                _write_tensor(source, unfinished, begin)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_tensor(source: Source, path: Path, begin: int) -> None:
    """Some rows of a part at a time: of the file no more than these are in memory."""
    integer = _INTEGERS[source.dtype.itemsize]
    dtype = torch.empty(0, dtype=integer, device="cpu").numpy().dtype
    row_nbytes = source.nbytes // source.shape[0] if source.shape else source.nbytes
    n = max(_MOST_MAPPED // max(row_nbytes, 1), 1)
    for index, part in source.parts():
        rows = index[0] if index else slice(0, 1)
        for first in range(rows.start, rows.stop, n):
            some = slice(first, min(first + n, rows.stop))
            shape = (some.stop - first, *source.shape[1:]) if index else ()
            there = np.memmap(path, dtype, "r+", begin + first * row_nbytes, shape)
            here = part[first - rows.start : some.stop - rows.start] if index else part
            there[(slice(None), *index[1:]) if index else ...] = (
                here.contiguous().view(integer).numpy()
            )
            there.flush()
