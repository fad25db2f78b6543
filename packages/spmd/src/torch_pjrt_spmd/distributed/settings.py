"""Time limits of runs of several processes."""

from __future__ import annotations

import os
from datetime import timedelta

from torch_pjrt.errors import SettingError

_VARIABLE = "TORCH_PJRT_PEER_TIMEOUT"


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
