"""These tests ask when programs run, and how many there are."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
