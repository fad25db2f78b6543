"""PyTorch's warning that an eager `flex_attention` makes all scores, which is not so on the device."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

_SLOW = "flex_attention_performance"


def install(module: ModuleType) -> None:
    """Warn of calls on other devices alone. Its function that warns is called by `flex_attention` itself."""
    theirs = getattr(module, "_warn_once", None)
    if theirs is None:  # another PyTorch
        return

    @functools.wraps(theirs)
    def warn_once(warning_id: str, *args: Any, **kwargs: Any) -> None:
        if warning_id == _SLOW:
            query = sys._getframe(1).f_locals.get("query")
            if query is not None and query.device.type == "pjrt":
                return
        theirs(warning_id, *args, **kwargs)

    module._warn_once = warn_once  # type: ignore[attr-defined]
