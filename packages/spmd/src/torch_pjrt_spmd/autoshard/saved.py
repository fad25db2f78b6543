"""Plans as JSON: what `Plan.save` writes, and how it is read again.

{"format": 2, "mesh": {"data": 2, "model": 4}, "chip": "v5e",
 "placements": {"up.weight": ["model", null]},       of parameters, buffers, optimizer state and inputs
 "activations": {"up": [["data", "model"], null]},   of modules' results
 "rematerialized": ["blocks.0", "blocks.1"],         modules that are computed again in backward
 "estimated": {...}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_pjrt_spmd.roles import OTHER
from torch_pjrt_spmd.spec import Entry, ShardingError, axes_of

if TYPE_CHECKING:
    from torch_pjrt_spmd.autoshard.plan import Plan

FORMAT = 2
_KEYS = (
    "format", "mesh", "chip", "placements", "activations", "rematerialized", "estimated",
)  # fmt: skip
Specs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file says, as it is written there: whether it can be is seen when the step is known.

    rematerialized  the modules that are computed again; None: it says nothing of that.
    """

    placements: Specs = field(default_factory=dict)
    activations: Specs = field(default_factory=dict)
    rematerialized: tuple[str, ...] | None = None


def as_json(plan: Plan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "mesh": dict(plan.mesh),
        "chip": plan.figures.name,
        "placements": {
            name: _written(p.spec) for p in plan.placements if p.role != OTHER for name in p.names
        },
        "activations": {
            name: _written(p.spec)
            for p in plan.activations
            if p.role == "activation"
            for name in p.names
        },
        "rematerialized": list(plan.rematerialized),
        "estimated": {
            "seconds": plan.seconds,
            "compute_s": plan.compute_s,
            "peak_bytes": plan.memory.peak,
            "exchanges": [asdict(e) for e in plan.exchanges],
        },
    }


def _written(spec: tuple[Entry, ...]) -> list[Any]:
    axes = map(axes_of, spec)
    return [a[0] if len(a) == 1 else list(a) or None for a in axes]


def read_saved(path: str | Path, mesh: Mapping[str, int]) -> Saved:
    """What a file says that `Plan.save` wrote, perhaps edited since. Its mesh may be of other sizes.

    Raises `ShardingError` for a file that is not there or of another kind, and for one whose mesh has not
    these axes.
    """
    try:
        said = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ShardingError(
            "The plan cannot be read.",
            saw=f"{path}: {error}",
            hint="`plan.save(path)` writes one; `plan=` takes its path, or specs by name",
        ) from error
    if not isinstance(said, dict) or "format" not in said:
        raise _no_plan(path, "no `format`")
    if said["format"] != FORMAT:
        raise ShardingError(
            "The plan is of another version.",
            saw=f"{path}: format {said['format']!r}",
            expected=f"{FORMAT}",
            hint="make it anew, with `plan.save(path)`",
        )
    unknown = [name for name in said if name not in _KEYS]
    if unknown:
        raise _no_plan(path, f"`{unknown[0]}`, which is none of {', '.join(_KEYS)}")
    of_file = _part(said, "mesh", dict, path)
    if set(of_file) - set(mesh) or {name for name, n in mesh.items() if n > 1} - set(of_file):
        raise ShardingError(
            "The plan is for a mesh with other axes.", saw=f"{of_file}", expected=f"{dict(mesh)}"
        )
    again = _part(said, "rematerialized", list, path) if "rematerialized" in said else None
    if again is not None and not all(isinstance(name, str) for name in again):
        raise _no_plan(path, f"{again} as `rematerialized`, which is a list of modules' names")
    return Saved(
        _part(said, "placements", dict, path),
        _part(said, "activations", dict, path),
        None if again is None else tuple(again),
    )


def _part(said: Mapping[str, Any], name: str, kind: type, path: str | Path) -> Any:
    found = said.get(name, kind() if name != "mesh" else None)
    if not isinstance(found, kind):
        raise _no_plan(
            path, f"`{name}` is {found!r}, and not {'a list' if kind is list else 'an object'}"
        )
    return found


def _no_plan(path: str | Path, what: str) -> ShardingError:
    return ShardingError(
        "The file is no plan.", saw=f"{path}: {what}", hint="`plan.save(path)` writes one"
    )
