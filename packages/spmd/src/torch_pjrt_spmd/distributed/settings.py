"""What variables say of runs of several processes: time limits, and whether collectives are fused."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache

from torch_pjrt.errors import SettingError

_VARIABLE = "TORCH_PJRT_PEER_TIMEOUT"
_FUSE = "TORCH_PJRT_FUSE_COLLECTIVES"


def peer_timeout(given: timedelta | None = None) -> float:
    """How long a process waits for others that do nothing, in seconds.

    given   of a process group, where the user has said something else than PyTorch's default.

    Raises `SettingError` where the variable is no positive number.
    """
    said = os.environ.get(_VARIABLE)
    if said is None:
        return given.total_seconds() if given is not None else 30.0
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise SettingError(f"{_VARIABLE} is a number of seconds, over 0.", saw=repr(said))
    return seconds


@cache
def fuses_collectives() -> bool:
    """Whether collectives become part of the programs around them. Read once.

    Raises `SettingError` where the variable is neither 0 nor 1.
    """
    said = os.environ.get(_FUSE, "1")
    if said not in ("0", "1"):
        raise SettingError(f"{_FUSE} is 0 or 1.", saw=repr(said))
    return said == "1"
