"""The chips that meshes are made of: this process's, or those of all processes of the run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch_pjrt.extend import client, joined_run


def run_chips() -> Sequence[Any]:
    """All chips of the run, those of the first process first; in each process alike."""
    ours = client()
    return ours.chips if joined_run() is None else _of_all_processes(ours.chip.client)


@lru_cache(1)
def _of_all_processes(of_jax: Any) -> Sequence[Any]:
    return tuple(sorted(of_jax.devices(), key=lambda chip: (chip.process_index, chip.id)))


def own_process() -> int:
    """The number of this process in its run."""
    return client().chip.process_index
