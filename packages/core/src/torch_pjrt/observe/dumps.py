"""Dumps: what each program is made of, written to a folder while it is compiled.

    TORCH_PJRT_DUMP=folder python train.py

writes, for the n-th program, `n.recorded.txt` (our graph as recorded), `n.graph.txt` (after the passes),
`n.stablehlo.mlir`, `n.hlo.txt` (optimized by XLA), `n.cost.json` and `n.memory.json` (what XLA estimates).
Files of an earlier run stay: numbers go on after the highest. A write that fails warns once; the program
runs all the same.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_pjrt.graph.graph import Graph
from torch_pjrt.graph.text import text
from torch_pjrt.observe import lines
from torch_pjrt.session import session
from torch_pjrt.settings import settings

_SIZES = ("argument", "output", "alias", "temp", "generated_code")


class Dump:
    """The files of one program; `stem` is the folder and the number."""

    def __init__(self, stem: Path) -> None:
        self._stem = stem

    def graphs(self, recorded: Graph, passed: Graph) -> None:
        """Write our graph as it was recorded and after the passes."""
        self._write("recorded.txt", lambda: text(recorded))
        self._write("graph.txt", lambda: text(passed))

    def lowered(self, lowered: Any) -> None:
        """Write the StableHLO of a `jax.stages.Lowered`."""
        self._write("stablehlo.mlir", lambda: stablehlo_of(lowered))

    def compiled(self, compiled: Any) -> None:
        """Write what a `jax.stages.Compiled` says of itself; where a device cannot say it, null."""
        self._write("hlo.txt", lambda: compiled.as_text() or "")
        self._write("cost.json", lambda: json.dumps(cost_of(compiled), indent=1))
        self._write("memory.json", lambda: json.dumps(memory_of(compiled), indent=1))

    def _write(self, name: str, make: Callable[[], str]) -> None:
        try:
            self._stem.with_name(f"{self._stem.name}.{name}").write_text(make() + "\n")
        except Exception as error:
            _warn(error)


def begin(recorded: Graph, passed: Graph) -> Dump | None:
    """The dump of a program about to be compiled, its graphs written; None where none is wanted."""
    if settings.dump is None:
        return None
    try:
        dump = Dump(_next_stem(Path(settings.dump)))
    except OSError as error:
        _warn(error)
        return None
    dump.graphs(recorded, passed)
    return dump


def stablehlo_of(lowered: Any) -> str:
    """StableHLO as text; with the positions of its operators in the user's program, while lines are noted."""
    return lowered.as_text(debug_info=lines.are_in_programs())


def cost_of(compiled: Any) -> dict[str, float] | None:
    """What XLA estimates: `flops`, `bytes accessed`, ...; None where the device does not say."""
    try:
        cost = compiled.cost_analysis()
    except Exception:  # NotImplementedError, or an error of the plugin's own
        return None
    if isinstance(cost, (list, tuple)):
        cost = cost[0] if cost else None
    return None if cost is None else {name: float(n) for name, n in cost.items()}


def memory_of(compiled: Any) -> dict[str, int] | None:
    """What XLA plans, in bytes: `argument_bytes`, `temp_bytes`, ...; None where the device does not say."""
    try:
        stats = compiled.memory_analysis()
    except Exception:
        return None
    if stats is None:
        return None
    return {f"{s}_bytes": int(getattr(stats, f"{s}_size_in_bytes", 0)) for s in _SIZES}


def _next_stem(folder: Path) -> Path:
    """A number that no other program in the folder has, also of other processes: its first file is made."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = [int(n) for n in (p.name.partition(".")[0] for p in folder.iterdir()) if n.isdecimal()]
    number = max(taken, default=0)
    while True:
        number += 1
        stem = folder / f"{number:04}"
        try:
            stem.with_name(f"{stem.name}.recorded.txt").touch(exist_ok=False)
        except FileExistsError:
            continue
        return stem


def _warn(error: Exception) -> None:
    if session.once("a warning of a dump that failed"):
        with contextlib.suppress(Warning):  # under `python -W error` too, the program must run
            warnings.warn(
                f"A program could not be dumped to {settings.dump!r} (TORCH_PJRT_DUMP): "
                f"{type(error).__name__}: {error}. Further failures are not told.",
                stacklevel=2,
            )
