"""What tests of captured steps share."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
