"""Block sizes that were measured on this machine: a file of JSON that the choice of blocks reads.

It lies beside the cache of programs, as `kernel-blocks.json`; `TORCH_PJRT_KERNEL_BLOCKS` names another file,
or none if it is empty. An entry's name says chip, operator, dtype and shapes; its value is how many queries
and keys a block has, how many classes and tokens a chunk of the loss has, or, of a kernel in Triton, a
configuration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch_pjrt
from torch_pjrt.plugin import client

if TYPE_CHECKING:
    from torch_pjrt_kernels.attention.choice import Problem

VARIABLE = "TORCH_PJRT_KERNEL_BLOCKS"
_FILE = "kernel-blocks.json"
Blocks = tuple[int, int]


def path() -> Path | None:
    """Where the table is; None: there is none."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    folder = torch_pjrt.config.cache_dir
    return None if folder is None else Path(folder) / _FILE


def entry_of(problem: Problem) -> str:
    """The name of an entry of the chip at work: lengths as they are, batch and heads together."""
    of = problem
    return (
        f"{client().chip.device_kind} {'causal' if of.is_causal else 'full'} attention in {of.dtype} "
        f"{of.batch * of.heads}/{of.batch * of.key_heads} "
        f"{of.queries}x{of.keys} {of.width}/{of.value_width}"
    )


def blocks_of(problem: Problem) -> Blocks | None:
    """The measured sizes of a problem's blocks; None where it was not measured."""
    return pair_of(lambda: entry_of(problem))


def pair_of(name: Callable[[], str]) -> Blocks | None:
    """The two positive numbers of an entry; None where there are none. Where nothing is, nobody is asked."""
    known = entries()
    found: Any = known.get(name()) if known else None
    return (found[0], found[1]) if _is_pair(found) else None


def entries() -> dict[str, Any]:
    """All that was measured, by name; what is no table of ours has none."""
    at = path()
    return {} if at is None else _read(at, _changed(at))


def keep(entries: dict[str, Any]) -> Path:
    """Add entries to the table, in place of those of their names. Raises `ValueError` where there is none."""
    at = path()
    if at is None:
        raise ValueError(f"there is no cache of programs: let {VARIABLE} name a file")
    all_ = {**_read(at, _changed(at)), **entries}
    at.parent.mkdir(parents=True, exist_ok=True)
    new = at.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(all_, indent=1, sort_keys=True))
    new.replace(at)
    return at


def _changed(at: Path) -> int:
    """When the file was written last, in ns; 0 where there is none."""
    try:
        return at.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=8)
def _read(at: Path, changed_ns: int) -> dict[str, Any]:
    if not changed_ns:
        return {}
    try:
        found = json.loads(at.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_pair(x: Any) -> bool:
    return isinstance(x, list) and len(x) == 2 and all(type(n) is int and n > 0 for n in x)
