"""TORCH_PJRT_ECOSYSTEM: which rows of the table are applied. Read when the process starts.

0                   none
accelerate,...      these libraries, or rows of the table (`transformers.nan_filter`), only
-lightning,...      all but these

TORCH_PJRT_CAPTURE_STEPS=1: training steps of libraries are captured. Read when training begins, by
Lightning's loop at each step.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from torch_pjrt.errors import SettingError

VARIABLE = "TORCH_PJRT_ECOSYSTEM"
CAPTURE = "TORCH_PJRT_CAPTURE_STEPS"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which names are on. A row's name is `library.what`; a library's name stands for all its rows."""

    allowed: frozenset[str] | None
    forbidden: frozenset[str] = frozenset()

    def __call__(self, name: str) -> bool:
        names = {name, name.partition(".")[0]}
        return (self.allowed is None or bool(names & self.allowed)) and not names & self.forbidden


def read(known: Collection[str]) -> Filter:
    """What the variable says; `SettingError` for a name that is not `known`, and for a mix of both forms."""
    text = os.environ.get(VARIABLE, "").strip()
    if text in ("", "1"):
        return Filter(None)
    if text == "0":
        return Filter(frozenset())
    words = [word.strip() for word in text.split(",") if word.strip()]
    forbidden = frozenset(word[1:] for word in words if word.startswith("-"))
    allowed = frozenset(word for word in words if not word.startswith("-"))
    if (allowed and forbidden) or not allowed | forbidden <= set(known):
        raise SettingError(
            f"{VARIABLE} cannot be read.",
            saw=repr(text),
            expected=f"0, or names to allow (`a,b`), or names to forbid (`-a,-b`), of {', '.join(known)}",
        )
    return Filter(allowed or None, forbidden)


def captures_steps() -> bool:
    """What TORCH_PJRT_CAPTURE_STEPS says: 1, or 0 as where it is not set; else `SettingError`."""
    text = os.environ.get(CAPTURE, "").strip()
    if text not in ("", "0", "1"):
        raise SettingError(f"{CAPTURE} cannot be read.", saw=repr(text), expected="0 or 1")
    return text == "1"
