"""Attention over a sequence that chips share: each has some positions, and keys and values go round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torch_pjrt_spmd.axis_collectives import axis_index, axis_size, ppermute
from torch_pjrt_spmd.mapping import shard_map
from torch_pjrt_spmd.spec import ShardingError

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh


def ring_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mesh: AnyMesh,
    axis: str,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, with the positions spread over a mesh axis.

    query, key, value   of shape (..., length, width), all of one length, which the chips along the axis
                        divide. Dims before these two are XLA's to split, along the other axes.
    is_causal           each position sees those before it and itself.
    scale               of the products; None: one over the root of the width.

    No chip has more than its part of any of them, nor more than (length / n) ** 2 products at a time:
    for long sequences, where the memory of one chip does not do. The result, of the query's shape and dtype,
    is spread as the query is; sums are in float32. With `is_causal` half of the products are masked, and
    computed all the same. Raises `ShardingError` for shapes that differ, and as `shard_map` does.

    Liu, Zaharia, Abbeel: "Ring Attention with Blockwise Transformers for Near-Infinite Context" (2023); the
    running softmax is Milakov and Gimelshein's (2018).
    """
    if not query.shape[:-1] == key.shape[:-1] == value.shape[:-1] or query.dim() < 2:
        raise ShardingError(
            "Ring attention takes a query, keys and values of one length.",
            saw=", ".join(str(list(x.shape)) for x in (query, key, value)),
        )
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    spec = (*[None] * (query.dim() - 2), axis, None)

    def on_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _round_the_ring(q, k, v, axis, factor, is_causal)

    mapped = shard_map(on_parts, mesh, (spec, spec, spec), spec, axis_names=(axis,))
    return mapped(query, key, value)


def _round_the_ring(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, axis: str, scale: float, is_causal: bool
) -> torch.Tensor:
    """One chip's positions: the blocks of keys come by, its own first."""
    n, length = axis_size(axis), q.shape[-2]
    onwards = [(i, (i + 1) % n) for i in range(n)]
    own = axis_index(axis)
    positions = torch.arange(length, device=q.device)
    wide = torch.promote_types(q.dtype, torch.float32)
    q = q.to(wide) * scale
    # Of each query the largest product so far, the sum of exponentials, and that of values with them.
    largest = total = weighted = None
    for step in range(n):
        products = q @ k.to(wide).transpose(-1, -2)
        if is_causal:
            of_keys = ((own - step) % n) * length + positions
            sees = (own * length + positions)[:, None] >= of_keys
            products = products.masked_fill(~sees, float("-inf"))
        found = products.detach().amax(-1, keepdim=True)
        larger = found if largest is None else torch.maximum(largest, found)
        exponentials = (products - larger).exp()
        new_total, new = exponentials.sum(-1, keepdim=True), exponentials @ v.to(wide)
        if largest is None or total is None or weighted is None:
            total, weighted = new_total, new
        else:
            shrink = (largest - larger).exp()
            total, weighted = total * shrink + new_total, weighted * shrink + new
        largest = larger
        if step < n - 1:
            k, v = ppermute(k, axis, onwards), ppermute(v, axis, onwards)
    assert total is not None
    assert weighted is not None
    return (weighted / total).to(v.dtype)
