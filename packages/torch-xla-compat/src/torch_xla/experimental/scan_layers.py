"""`scan_layers`: layers that are alike, compiled as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> Any:
    """The layers called one after another, each with the result of the one before; a tuple is its arguments.

    Layers that repeat become one loop of the program by themselves (the page `rolled-layers`).
    """
    for layer in layers:
        input_data = layer(*input_data) if isinstance(input_data, tuple) else layer(input_data)
    return input_data
