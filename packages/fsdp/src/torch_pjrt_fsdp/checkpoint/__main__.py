"""Look at checkpoints: `python -m torch_pjrt_fsdp.checkpoint list|verify|export ...`."""

from __future__ import annotations

import argparse
import sys

import torch

from torch_pjrt_fsdp.checkpoint.exporting import export_safetensors
from torch_pjrt_fsdp.checkpoint.manager import CheckpointManager
from torch_pjrt_fsdp.checkpoint.stored import Stored
from torch_pjrt_spmd import CheckpointError


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 1 if what it looks at is damaged or not there."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_pjrt_fsdp.checkpoint", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="the steps of a run's complete checkpoints")
    listing.add_argument("folder")
    verify = commands.add_parser("verify", help="read all of a checkpoint, and compare checksums")
    verify.add_argument("checkpoint")
    export = commands.add_parser("export", help="write its tensors to files of safetensors")
    export.add_argument("checkpoint")
    export.add_argument("path", help="model.safetensors, or what the files are to be called")
    export.add_argument("--key", default="model", help="what the model is in the state")
    export.add_argument("--dtype", help="of floating-point tensors: bfloat16, say")
    export.add_argument("--most-bytes", type=int, default=5_000_000_000, help="in one file")
    given = parser.parse_args(arguments)
    try:
        if given.command == "list":
            print("\n".join(map(str, CheckpointManager(given.folder).steps())))
        elif given.command == "verify":
            print(_verified(given.checkpoint))
        else:
            dtype = getattr(torch, given.dtype) if given.dtype else None
            for file in export_safetensors(
                *(given.checkpoint, given.path),
                key=given.key,
                dtype=dtype,
                most_bytes=given.most_bytes,
            ):
                print(file)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _verified(path: str) -> str:
    stored = Stored(path)
    for name, tensor in stored.tensors.items():
        for chunk in tensor.chunks:
            stored.read(name, chunk.box)
            stored.done(chunk)
    for name in stored.objects:
        stored.object(name)
    n_bytes = sum(tensor.n_bytes for tensor in stored.tensors.values())
    return f"{len(stored.tensors)} tensors of {n_bytes} bytes and {len(stored.objects)} objects are intact"


if __name__ == "__main__":
    sys.exit(main())
