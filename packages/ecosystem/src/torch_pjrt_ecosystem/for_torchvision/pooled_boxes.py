"""`roi_align` and its backward as operators with rules.

A pooled cell is a weighted sum of the pixels of its image, and the weights of a pixel are those of its row
times those of its column. So a box is two products with small matrices, box after box: no array has boxes,
channels and pixels. Where `sampling_ratio` leaves the number of samples to the box, the loop over them is as
long as the largest box of this call needs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor

from torch_pjrt.extend import lowers

_SIZES = ("pooled_height", "pooled_width", "sampling_ratio")


@torch.library.custom_op("torch_pjrt_ecosystem::pooled_boxes", mutates_args=())
def pooled_boxes(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """`torchvision::roi_align`, of which this is the part on the device."""
    arguments = (spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)
    return torch.ops.torchvision.roi_align(input, rois, *arguments)


@pooled_boxes.register_fake
def _(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    return input.new_empty(len(rois), input.shape[1], pooled_height, pooled_width)


@torch.library.custom_op("torch_pjrt_ecosystem::spread_boxes", mutates_args=())
def spread_boxes(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """`torchvision::_roi_align_backward`, of which this is the part on the device."""
    sizes = (pooled_height, pooled_width, batch_size, channels, height, width)
    backward = torch.ops.torchvision._roi_align_backward
    return backward(grad, rois, spatial_scale, *sizes, sampling_ratio, aligned)


@spread_boxes.register_fake
def _(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    return grad.new_empty(batch_size, channels, height, width)


@lowers(pooled_boxes._opoverload, static=_SIZES)
def _roi_align(
    input: jax.Array,
    rois: jax.Array,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> jax.Array:
    rows, columns, images = _weights(
        rois, input.shape[2:], spatial_scale, (pooled_height, pooled_width), sampling_ratio, aligned
    )

    def pooled(box: tuple[jax.Array, ...]) -> jax.Array:
        row, column, image = box
        whole = lax.dynamic_index_in_dim(input, image, keepdims=False)
        return jnp.einsum(
            "ph,chw,qw->cpq", row, whole.astype(row.dtype), column, precision="highest"
        )

    return lax.map(pooled, (rows, columns, images)).astype(input.dtype)


@lowers(spread_boxes._opoverload, static=(*_SIZES, "batch_size", "channels", "height", "width"))
def _backward(
    grad: jax.Array,
    rois: jax.Array,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> jax.Array:
    rows, columns, images = _weights(
        rois, (height, width), spatial_scale, (pooled_height, pooled_width), sampling_ratio, aligned
    )

    def spread(total: jax.Array, box: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        row, column, image, part = box
        part = jnp.einsum(
            "ph,cpq,qw->chw", row, part.astype(row.dtype), column, precision="highest"
        )
        return total.at[image].add(part), None

    start = jnp.zeros((batch_size, channels, height, width), rows.dtype)
    total, _ = lax.scan(spread, start, (rows, columns, images, grad))
    return total.astype(grad.dtype)


def _weights(
    rois: jax.Array,
    size: tuple[int, ...],
    scale: jax.Array | float,
    pooled: tuple[int, int],
    ratio: int,
    aligned: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of each box: the weights of rows, (cells, rows); of columns, (cells, columns); its image."""
    rois = rois.astype(jnp.promote_types(rois.dtype, jnp.float32))
    half = rois.dtype.type(0.5 if aligned else 0.0)
    corners = rois[:, 1:] * jnp.asarray(scale, rois.dtype) - half
    columns = _along(corners[:, 0], corners[:, 2], pooled[1], size[1], ratio, aligned)
    rows = _along(corners[:, 1], corners[:, 3], pooled[0], size[0], ratio, aligned)
    return rows, columns, rois[:, 0].astype(jnp.int32)


def _along(
    start: jax.Array, end: jax.Array, cells: int, size: int, ratio: int, aligned: bool
) -> jax.Array:
    """The mean over a cell's samples of the two pixels beside each, which share it by their distance.

    A sample more than one pixel outside of the image is 0.
    """
    kind = start.dtype.type
    length = end - start if aligned else jnp.maximum(end - start, kind(1))
    cell = length / kind(cells)
    n = jnp.full_like(start, ratio) if ratio > 0 else jnp.ceil(length / kind(cells))
    pixels = jnp.arange(size, dtype=start.dtype)
    firsts = start[:, None] + jnp.arange(cells, dtype=start.dtype) * cell[:, None]

    def with_sample(i: jax.Array, total: jax.Array) -> jax.Array:
        at = firsts + ((i.astype(start.dtype) + kind(0.5)) * cell / n)[:, None]
        is_in = (at >= kind(-1)) & (at <= kind(size)) & (i.astype(start.dtype) < n)[:, None]
        at = jnp.clip(at, kind(0), kind(size - 1))
        share = jnp.maximum(kind(1) - jnp.abs(at[..., None] - pixels), kind(0))
        return total + jnp.where(is_in[..., None], share, kind(0))

    most = jnp.int32(ratio) if ratio > 0 else jnp.max(n, initial=0).astype(jnp.int32)
    nothing = jnp.zeros((len(start), cells, size), start.dtype)
    total = lax.fori_loop(jnp.int32(0), most, with_sample, nothing)
    return total / jnp.maximum(n, kind(1))[:, None, None]
