"""A checkpoint as files of safetensors, in the layout that Hugging Face's libraries load."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from torch_pjrt_fsdp.checkpoint import layout
from torch_pjrt_fsdp.checkpoint.stored import Stored, StoredTensor
from torch_pjrt_spmd import CheckpointError
from torch_pjrt_spmd.safetensors_files import Source, write_sources

_MOST_AT_ONCE = 1 << 23  # bytes of a tensor that are looked at, at once


def export_safetensors(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    key: str | None = "model",
    most_bytes: int | None = 5_000_000_000,
    dtype: torch.dtype | None = None,
    rename: Callable[[str], str | None] | None = None,
) -> list[Path]:
    """Write the tensors of a checkpoint as `model-00001-of-00003.safetensors` and so on, with an index.

    path        of the one file, `model.safetensors`. Several are called as it is, with numbers, and their
                index as it is, with `.index.json`.
    key         what is exported: what the state had under it, with names of their own. None: all tensors.
    most_bytes  of tensors in one file. None: all into one.
    dtype       that floating-point tensors are converted to. None: as they were saved.
    rename      gives each tensor's name in the file, or None to leave it out.

    Returns the files of tensors. The host has a small part of one tensor at a time, which is verified; no
    device is needed, and one process does it. `load_safetensors` loads the result onto any mesh, and
    `save_safetensors` writes a live model the same way. Raises `CheckpointError` if there is nothing to
    export, or as loading does.

        export_safetensors("/shared/run/step-100", "out/model.safetensors", dtype=torch.bfloat16)
    """
    stored = Stored(checkpoint)
    sources: dict[str, Source] = {}
    for name, tensor in stored.tensors.items():
        if key is not None and stored.paths[name][0] != key:
            continue
        own = name if key is None else name.removeprefix(f"{key}.")
        if (new := rename(own) if rename else own) is not None:
            sources[new] = _source(stored, tensor, dtype)
    if not sources:
        keys = sorted({str(path[0]) for path in stored.paths.values()})
        raise CheckpointError(
            f"There is nothing to export in {stored.path}.",
            saw=f"key={key!r}",
            expected=f"one of {', '.join(keys)}",
        )
    return write_sources(sources, path, most_bytes=most_bytes, metadata={"format": "pt"})


def _source(stored: Stored, tensor: StoredTensor, dtype: torch.dtype | None) -> Source:
    to = dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype

    def parts() -> Iterator[tuple[tuple[slice, ...], torch.Tensor]]:
        for chunk in tensor.chunks:
            for box in layout.divided(chunk.box, tensor.dtype.itemsize, _MOST_AT_ONCE):
                content = stored.read(tensor.name, box)
                yield tuple(slice(a, a + n) for a, n in zip(*box, strict=True)), content.to(to)
                del content
                stored.done(chunk)

    return Source(to, tensor.shape, parts)
