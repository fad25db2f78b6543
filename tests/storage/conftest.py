"""These tests ask which memory tensors share, and what is given away."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
