"""Which chips a collective joins, from what XLA writes of it: as axes of the mesh."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax

_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
# As of JAX 0.10: axes of a mesh of XLA's own, some perhaps in part, and how the chips lie on it.
_OF_MESH = re.compile(
    r"replica_groups=mesh\[(?P<axes>[^\]]*)\]"
    r"(?:, device_ids=\((?:\[(?P<of>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<ids>[\d,]+))\))?"
    r" \{(?P<along>[^}]*)\}"
)
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_ALONG = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def axes_of(rest: str, mesh: jax.sharding.Mesh) -> tuple[str, ...]:
    """The axes along which the positions differ that are in one group."""
    shape = tuple(mesh.shape.values())
    differ: set[str] = set()
    for group in _groups(rest, prod(shape)):
        for name, along in zip(mesh.axis_names, np.unravel_index(group, shape), strict=True):
            if len(set(along.tolist())) > 1:
                differ.add(name)
    return tuple(name for name in mesh.axis_names if name in differ)


def _groups(rest: str, n_chips: int) -> list[Any]:
    """The groups of positions that exchange with each other."""
    if (of_mesh := _OF_MESH.search(rest)) is not None:
        return _groups_of_mesh(of_mesh)
    if (iota := _IOTA.search(rest)) is not None:
        shape, of, order = (_numbers(part or "") for part in iota.groups())
        positions = np.arange(prod(of)).reshape(of)
        return list((positions.transpose(order) if order else positions).reshape(shape))
    if (listed := _LISTED.search(rest)) is not None:
        found = [_numbers(group) for group in re.findall(r"\{([\d, ]*)\}", listed[1])]
        return [np.array(group) for group in found if group]
    return [np.arange(n_chips)]  # all of them


def _groups_of_mesh(match: re.Match[str]) -> list[Any]:
    sizes = {name: int(n) for name, n in _AXIS.findall(match["axes"])}
    if match["ids"]:
        positions = np.array(_numbers(match["ids"]))
    else:
        of = _numbers(match["of"] or "") or tuple(sizes.values())
        order = _numbers(match["order"] or "") or tuple(range(len(of)))
        positions = np.arange(prod(of)).reshape(of).transpose(order)
    # Each axis in three parts, of which the second is gone along: all of it, or none.
    parts = {name: (1, 1, n) for name, n in sizes.items()}
    for name, before, within in _ALONG.findall(match["along"]):
        n = int(within or sizes[name])
        parts[name] = (int(before or 1), n, sizes[name] // (int(before or 1) * n))
    split = positions.reshape([n for part in parts.values() for n in part])
    along = list(range(1, split.ndim, 3))
    moved = np.moveaxis(split, along, range(-len(along), 0))
    return list(moved.reshape(-1, prod(part[1] for part in parts.values())))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n.strip())
