"""Folders that appear whole, and the last one: where a run goes on that is started again.

    begun = last_checkpoint("/shared/run")
    for step in range(begun.step + 1 if begun else 0, n_steps):
        ...
        with new_checkpoint("/shared/run", step) as folder:
            torch.save(model.state_dict(), folder / f"model-{rank}.pt")

A folder is called `step-12.incomplete` until all ranks have written to it. torchrun, JobSet, Slurm and
`launch_on_ray` start a run again from its beginning: it is the program that looks for its last checkpoint.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_pjrt.errors import SettingError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that is complete, and the number of the step after which it was written."""

    step: int
    folder: Path


def checkpoints(folder: str | Path) -> list[Checkpoint]:
    """Those that are complete, the first step first. None of a folder that is not there."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in Path(folder).iterdir():
            if name := re.fullmatch(r"step-(\d+)", path.name):
                found.append(Checkpoint(int(name[1]), path))
    return sorted(found, key=lambda one: one.step)


def last_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The one of the highest step; None where there is none yet."""
    return max(checkpoints(folder), key=lambda one: one.step, default=None)


@contextlib.contextmanager
def new_checkpoint(folder: str | Path, step: int, *, keep: int = 2) -> Iterator[Path]:
    """A folder to write to. It is a checkpoint once all ranks have left the block without an error.

    folder   the same for all ranks, on a disk that all see.
    step     of which there is no checkpoint yet; an incomplete one is written anew.
    keep     how many complete ones stay, this one counted.

    All ranks of the default process group must enter and leave it: they wait for each other.
    """
    if keep < 1:
        raise SettingError("One checkpoint is kept at least.", saw=f"keep={keep}")
    whole = Path(folder) / f"step-{step}"
    part = whole.with_name(f"{whole.name}.incomplete")
    if is_first := _rank() == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    _wait_for_all()
    yield part
    _wait_for_all()
    if is_first:
        part.rename(whole)
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old.folder)
    _wait_for_all()


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


def _wait_for_all() -> None:
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
