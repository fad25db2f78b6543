"""These tests ask which device and which rules are found."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
