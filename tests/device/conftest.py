"""These tests ask what PyTorch says of the device, and what the device says."""

from __future__ import annotations

from quickly import compiled_quickly

__all__ = ["compiled_quickly"]
