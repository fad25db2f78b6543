"""How DTensor may shard the device's attention: by the batch and by heads, as it does CUDA's.

Attention of a device that is not PyTorch's own is an operator of its own, of which DTensor knows nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from torch_pjrt.plugin import aten

_FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default

Shardings = list[tuple[list[Any], list[Any]]]


def register(tensor: Any) -> None:
    """Tell `torch.distributed.tensor`, once it has been imported."""
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(_FORWARD)(forward)
    register_sharding(_BACKWARD)(backward)


def forward(*arguments: Any, **numbers: Any) -> Shardings:
    """Of query, key and value; the output and its logsumexp lie as they do."""
    bias = arguments[3] if len(arguments) > 3 else None
    return [
        (_outputs(_FORWARD, placed, {0, 1}), _inputs(arguments, placed, {0, 1, 2}))
        for placed in _ways(bias)
    ]


def backward(*arguments: Any, **numbers: Any) -> Shardings:
    """Of the gradient, query, key and value, output and logsumexp; the three gradients lie as they do."""
    return [
        (
            _outputs(_BACKWARD, placed, {0, 1, 2}),
            _inputs(arguments, placed, {0, 1, 2, 3, 6, 7}),
        )
        for placed in _ways(arguments[4])
    ]


def _ways(bias: Any) -> list[Any]:
    """Whole, by the batch, by heads. A bias may be broadcast over both: with one, whole only."""
    from torch.distributed.tensor import Replicate, Shard

    if hasattr(bias, "tensor_meta"):
        return [Replicate()]
    return [Replicate(), Shard(0), Shard(1)]


def _outputs(op: Any, placed: Any, which: Collection[int]) -> list[Any]:
    """The placements of an operator's outputs: of `which` as said, other tensors whole, numbers none."""
    from torch.distributed.tensor import Replicate

    tensors = [isinstance(output.type, torch.TensorType) for output in op._schema.returns]
    return [
        (placed if i in which else Replicate()) if is_one else None
        for i, is_one in enumerate(tensors)
    ]


def _inputs(arguments: Sequence[Any], placed: Any, which: Collection[int]) -> list[Any]:
    from torch.distributed.tensor import Replicate

    tensors = [hasattr(x, "tensor_meta") for x in arguments]
    return [
        (placed if i in which else Replicate()) if is_one else None
        for i, is_one in enumerate(tensors)
    ]
