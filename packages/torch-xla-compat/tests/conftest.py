"""These tests ask what calls of `torch_xla` become; XLA compiles it quickly."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
