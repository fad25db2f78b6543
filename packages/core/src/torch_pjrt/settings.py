"""What a user may set: by environment variable when the process starts, or on `settings` later."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from torch_pjrt.errors import SettingError


def _integer(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise SettingError(
            f"{variable} cannot be read.", saw=repr(text), expected="an integer >= 1"
        )
    return number


@dataclass(slots=True)
class Settings:
    """All settings, each with the variable that sets it.

    tape_bound  TORCH_PJRT_TAPE_BOUND: the tape is run when it holds more values than this.
    """

    tape_bound: int = field(default_factory=lambda: _integer("TORCH_PJRT_TAPE_BOUND", 10_000))


settings = Settings()
