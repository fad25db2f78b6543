"""Repeated layers as loops: detection, wiring, emission, each a file; `roll_layers.py` is the pass."""

from torch_pjrt.passes.rolling.roll_layers import RollLayers

__all__ = ["RollLayers"]
