"""How a tensor lies: its sharding, its shards, and a picture of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torch_pjrt import to_jax
from torch_pjrt.errors import SettingError
from torch_pjrt_spmd.default_mesh import mesh_of
from torch_pjrt_spmd.memory_kinds import HOST
from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.picture import Part, svg
from torch_pjrt_spmd.run_chips import run_chips
from torch_pjrt_spmd.spec import Entry, ShardingError

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class TensorSharding:
    """How a tensor lies on a mesh.

    spec  for each dim an axis, a tuple of axes, or None.
    memory_kind    "pinned_host" for what lies in the host's memory; None: in the chips'.
    """

    mesh: Mesh
    spec: tuple[Entry, ...]
    memory_kind: str | None = None


@dataclass(frozen=True, eq=False)
class LocalShard:
    """The part of a tensor that one chip has.

    device  the chip's index.
    index   where it lies in the tensor, a slice for each dim.
    data    what is in it, on the CPU.
    """

    device: int
    index: tuple[slice, ...]
    data: torch.Tensor


def sharding_of(tensor: torch.Tensor) -> TensorSharding | None:
    """How a tensor of the device lies; None if it is on one chip. Runs what is pending.

    `ShardingError` for one that XLA has spread in a way that no spec says.
    """
    import jax

    found = to_jax(tensor).sharding
    if len(found.device_set) == 1:
        return None
    mesh = mesh_of(found)
    if mesh is None:
        raise ShardingError("XLA has spread a tensor as no spec says.", saw=repr(found))
    assert isinstance(found, jax.sharding.NamedSharding)
    spec = tuple(found.spec) + (None,) * (tensor.dim() - len(found.spec))
    kind = HOST if found.memory_kind == HOST else None
    return TensorSharding(Mesh.from_jax(mesh), spec, kind)


def local_shards(tensor: torch.Tensor) -> list[LocalShard]:
    """The parts of a tensor of the device, in the order of the chips. Runs what is pending, and waits.

    A dim of no axis is whole in each: chips along it have equal parts.
    """
    array = to_jax(tensor)
    numbers = {chip: i for i, chip in enumerate(run_chips())}
    shards = sorted(array.addressable_shards, key=lambda shard: numbers[shard.device])
    return [
        LocalShard(
            numbers[shard.device],
            tuple(slice(*s.indices(n)[:2]) for s, n in zip(shard.index, array.shape, strict=True)),
            _on_cpu(shard.data, tensor.dtype),
        )
        for shard in shards
    ]


def visualize_sharding(tensor: torch.Tensor, path: str | Path | None = None) -> None:
    """Print which chip has which part of a tensor of one or two dims, by rich; or write a picture.

    path   of an SVG file to write instead. Each part is a rectangle with the numbers of its chips.

    Runs what is pending. `ShardingError` for a tensor of another number of dims, `SettingError` for another
    kind of file.

        visualize_sharding(x, "x.svg")
    """
    import jax

    if tensor.dim() not in (1, 2):
        raise ShardingError(
            "Only tensors of one or two dims are drawn.", saw=f"a tensor of {list(tensor.shape)}"
        )
    array = to_jax(tensor)
    if path is None:
        jax.debug.visualize_array_sharding(array)
    elif Path(path).suffix == ".svg":
        Path(path).write_text(_picture(array))
    else:
        raise SettingError(
            "A sharding is drawn as SVG.",
            saw=str(path),
            expected="a name that ends in .svg",
            hint="browsers and notebooks show it; `rsvg-convert x.svg -o x.png` makes another picture of it",
        )


def _picture(array: jax.Array) -> str:
    numbers = {chip: i for i, chip in enumerate(run_chips())}
    rows, columns = (1, *array.shape)[-2:]
    chips_of: dict[Part, list[int]] = {}
    for chip, index in array.sharding.devices_indices_map(array.shape).items():
        (top, bottom, _), (left, right, _) = (
            s.indices(n) for s, n in zip((slice(None), *index)[-2:], (rows, columns), strict=True)
        )
        chips_of.setdefault((top, bottom, left, right), []).append(numbers[chip])
    ordered = {part: sorted(chips_of[part]) for part in sorted(chips_of)}
    return svg(rows, columns, ordered, f"{array.dtype}{list(array.shape)}")


def _on_cpu(array: jax.Array, dtype: torch.dtype) -> torch.Tensor:
    import numpy as np

    host = np.array(array)
    if host.dtype.kind in "fiubc" and host.dtype.itemsize == dtype.itemsize:
        try:
            return torch.from_numpy(host)
        except TypeError:  # NumPy's dtype is an extension, of bfloat16 say
            pass
    return torch.from_numpy(host.view(np.uint8)).view(dtype).reshape(host.shape)
