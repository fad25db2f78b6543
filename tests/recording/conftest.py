"""These tests ask what is recorded, and what stops it."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
