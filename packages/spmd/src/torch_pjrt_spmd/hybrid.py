"""Which chip goes where on a mesh over several slices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from torch_pjrt.errors import SettingError


def hybrid_order(
    chips: Sequence[Any], ici_shape: tuple[int, ...], dcn_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """The indices of chips, row by row, on a mesh whose axes are `dcn` slices of `ici` chips long."""
    from jax.experimental import mesh_utils

    if len(ici_shape) != len(dcn_shape) or min((*ici_shape, *dcn_shape), default=1) < 1:
        raise SettingError(
            "Along each axis there are chips of a slice, and slices: 1 or more of each.",
            saw=f"ici_shape {ici_shape}, dcn_shape {dcn_shape}",
        )
    n_slices, n_chips = prod(dcn_shape), prod(ici_shape)
    slices = _slices(chips) if n_slices > 1 else [chips]
    if len(slices) == 1:
        slices = _blocks(chips, n_slices, n_chips)
    if len(slices) != n_slices or any(len(of_one) != n_chips for of_one in slices):
        raise SettingError(
            f"A mesh of {n_slices} slices with {n_chips} chips each does not fit those that are there.",
            saw=f"ici_shape {ici_shape}, dcn_shape {dcn_shape}",
            expected=f"slices with {', '.join(str(len(of_one)) for of_one in slices)} chips",
        )
    numbers = {id(chip): i for i, chip in enumerate(chips)}
    placed = [mesh_utils.create_device_mesh(ici_shape, list(of_one)) for of_one in slices]
    found = [numbers[id(chip)] for of_one in placed for chip in of_one.flat]
    # Each axis is slices, then the chips of one: (dcn..., ici...) becomes (dcn, ici, dcn, ici, ...).
    n_axes = len(ici_shape)
    beside = [
        axis for pair in zip(range(n_axes), range(n_axes, 2 * n_axes), strict=True) for axis in pair
    ]
    order = np.array(found).reshape(*dcn_shape, *ici_shape).transpose(beside)
    return tuple(order.flatten().tolist())


def _slices(chips: Sequence[Any]) -> list[Sequence[Any]]:
    """The chips by the slice that they are in, else by their host."""
    for kind in ("slice_index", "process_index"):
        found: dict[Any, list[Any]] = {}
        for chip in chips:
            found.setdefault(getattr(chip, kind, None), []).append(chip)
        if len(found) > 1:
            return [found[key] for key in sorted(found)]
    return [list(chips)]


def _blocks(chips: Sequence[Any], n_slices: int, n_chips: int) -> list[Sequence[Any]]:
    if n_slices * n_chips > len(chips):
        raise SettingError(
            f"A mesh of {n_slices} slices with {n_chips} chips each needs {n_slices * n_chips}.",
            saw=f"{len(chips)} chips in one slice",
        )
    return [chips[i * n_chips : (i + 1) * n_chips] for i in range(n_slices)]
