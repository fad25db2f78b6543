"""These tests ask what is said of programs."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
