"""`torch.autocast("pjrt")`: every operator passes through unless a rule casts it."""

from __future__ import annotations

import torch

_library: torch.library.Library | None = None


def install() -> None:
    """Let operators without an autocast rule through: without this each one would raise."""
    global _library
    if _library is None:
        _library = torch.library.Library("_", "IMPL")
        _library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
