"""Layers in stages, each on chips of its own, and batches that go through in small parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt_spmd.axis_collectives import axis_index, axis_size, ppermute, psum
from torch_pjrt_spmd.cut import first_dims
from torch_pjrt_spmd.mapping import shard_map
from torch_pjrt_spmd.spec import ShardingError

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh


def pipeline(
    layer: Callable[[Any, torch.Tensor], torch.Tensor],
    parameters: Any,
    x: torch.Tensor,
    mesh: AnyMesh,
    axis: str,
    *,
    n_microbatches: int,
) -> torch.Tensor:
    """Equal layers one after the other, the first of them on the first chips along a mesh axis, and so on.

    layer           of the parameters of one layer and a tensor; gives one of the same shape and dtype.
    parameters      a list or dict of tensors, whose first dim counts the layers: mark them as `(axis,)`, so
                    that each chip has those of its own layers alone. The chips divide the layers.
    x               a batch; what each layer does to an element of it must not depend on the others.
    n_microbatches  into how many equal parts the batch is cut. Of n stages, each waits for
                    (n - 1) / (n - 1 + n_microbatches) of the time.

    The result, of x's shape, is whole along the axis. Backward goes through the stages the other way, and
    keeps what forward made of every part. Raises `ShardingError` for
    layers that chips do not divide or that change the shape, and a batch that the parts do not divide.

    Huang et al.: "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (2019).
    """
    if n_microbatches < 1 or x.shape[0] % n_microbatches:
        raise ShardingError(
            f"The batch has {x.shape[0]} elements, which {n_microbatches} microbatches do not divide.",
            saw=f"a tensor of {list(x.shape)}",
        )
    counts = first_dims(parameters)
    if len(counts) != 1:
        raise ShardingError(
            "The first dim of all parameters of a pipeline counts its layers.",
            saw=f"first dims of {sorted(counts)}",
        )

    def on_parts(own: Any, batch: torch.Tensor) -> torch.Tensor:
        return _through_the_stages(layer, own, batch.chunk(n_microbatches), axis)

    mapped = shard_map(on_parts, mesh, ((axis,), ()), (), axis_names=(axis,))
    return mapped(parameters, x)


def _through_the_stages(
    layer: Callable[[Any, torch.Tensor], torch.Tensor],
    own: Any,
    parts: tuple[torch.Tensor, ...],
    axis: str,
) -> torch.Tensor:
    """What one stage does: at each tick it takes a part from the stage before it, and hands it on."""
    n, stage = axis_size(axis), axis_index(axis)
    onwards = [(i, i + 1) for i in range(n - 1)]
    n_layers = tree_leaves(own)[0].shape[0]
    layers = [tree_map(lambda t, i=i: t[i], own) for i in range(n_layers)]
    is_first, is_last = stage == 0, stage == n - 1
    came = torch.zeros_like(parts[0])
    results = []
    for tick in range(len(parts) + n - 1):
        part = parts[min(tick, len(parts) - 1)]
        y = torch.where(is_first, part, came)
        for of_layer in layers:
            y = layer(of_layer, y)
        if y.shape != part.shape or y.dtype != part.dtype:
            raise ShardingError(
                "A layer of a pipeline gives another shape or dtype than it takes.",
                saw=f"{y.dtype} of {list(y.shape)} for {part.dtype} of {list(part.shape)}",
            )
        if tick >= n - 1:
            results.append(y)
        if tick < len(parts) + n - 2 and n > 1:
            came = ppermute(y, axis, onwards)
    y = torch.cat(results)
    return psum(torch.where(is_last, y, torch.zeros_like(y)), axis)
