"""These tests ask which layers become loops."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
