"""The chips of a device, as `python -m torch_pjrt devices` lists them: where each is, as PJRT tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MOST_LISTED = 64

#   heading        what it says of a chip; None where that is unknown
COLUMNS: Mapping[str, Callable[[Any], Any]] = {
    "ID":          lambda chip: chip.id,
    "COORDINATES": lambda chip: _joined(getattr(chip, "coords", None)),
    "CORE":        lambda chip: getattr(chip, "core_on_chip", None),
    "SLICE":       lambda chip: getattr(chip, "slice_index", None),
    "PROCESS":     lambda chip: chip.process_index,
}  # fmt: skip


def described(name: str, chips: Sequence[Any]) -> tuple[str, list[tuple[str, ...]]]:
    """A line about all of them, and a table with a row each, without columns that no chip has a value for.

    name   of the device, or of the target that the chips are of.
    """
    numbers = range(len(chips))
    columns = {"CHIP": [str(n) for n in numbers]}
    for heading, of in COLUMNS.items():
        values = [of(chip) for chip in chips]
        if any(value is not None for value in values):
            columns[heading] = ["" if value is None else str(value) for value in values]
    rows = list(zip(*columns.values(), strict=True))
    left_out = len(rows) - _MOST_LISTED
    if left_out > 0:
        rows = [*rows[:_MOST_LISTED], (f"{left_out} more", *[""] * (len(columns) - 1))]
    return _summary(name, chips), [tuple(columns), *rows]


def _summary(name: str, chips: Sequence[Any]) -> str:
    kinds = sorted({chip.device_kind for chip in chips})
    words = [f"{len(chips)} {'chip' if len(chips) == 1 else 'chips'} of {name}: {', '.join(kinds)}"]
    coordinates = [chip.coords for chip in chips if getattr(chip, "coords", None) is not None]
    if len(coordinates) == len(chips):
        extents = [len(set(along)) for along in zip(*coordinates, strict=True)]
        words.append(" x ".join(str(n) for n in extents if n > 1) or "1")
    for heading, plural in (("SLICE", "slices"), ("PROCESS", "processes")):
        n = len({COLUMNS[heading](chip) for chip in chips} - {None})
        if n > 1:
            words.append(f"{n} {plural}")
    return ", ".join(words)


def _joined(coordinates: Any) -> str | None:
    return None if coordinates is None else ",".join(map(str, coordinates))
