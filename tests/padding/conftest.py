"""These tests ask what is padded, and whether one sees it."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
