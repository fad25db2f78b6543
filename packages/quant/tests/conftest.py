"""These tests ask what is quantized and how it is kept; XLA compiles it quickly."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
