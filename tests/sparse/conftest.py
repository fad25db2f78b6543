"""These tests ask what of sparse tensors is kept."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
