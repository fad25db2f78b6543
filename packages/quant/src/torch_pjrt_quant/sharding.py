"""Layers with small weights on a mesh: their scales and zeros lie as their weights do."""

from __future__ import annotations

from typing import Any

from torch_pjrt_quant.linear import QuantizedLinear


def shard_linear(
    layer: QuantizedLinear, mesh: Any, *, rows: str | None = None, columns: str | None = None
) -> QuantizedLinear:
    """Spread a layer over a mesh of torch_pjrt_spmd: weight, scales, zeros and bias. Returns the layer.

    mesh       as `torch_pjrt_spmd.mark_sharding` takes it.
    rows       the axis over which the weight's rows (outputs) are spread, as in column-parallel layers of
               Megatron's. They may be spread over up to 16 chips without leaving their chips.
    columns    the axis over which its columns (inputs) are spread, in whole groups: products are summed.

    Raises `ShardingError` of torch_pjrt_spmd where the axis does not divide a dim or the number of groups.
    """
    from torch_pjrt_spmd import mark_sharding

    for name in layer.names:
        tensor = getattr(layer, name)
        if tensor is not None:
            mark_sharding(tensor, mesh, (rows, columns)[: tensor.ndim])
    if layer.bias is not None:
        mark_sharding(layer.bias, mesh, (rows,))
    return layer
