"""Collectives with gradients (`torch_xla.core.functions`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_xla import process_groups
from torch_xla.absent import absent
from torch_xla.core import collectives
from torch_xla.core.collectives import REDUCE_SUM, Groups

__getattr__ = absent(__name__, {"nms": "`torchvision.ops.nms` runs on the device's boxes"})


class AllReduceSumLayer(torch.autograd.Function):
    """The sum of all ranks' inputs; its gradient is the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float, groups: Groups) -> torch.Tensor:
        ctx.scale, ctx.groups = scale, groups
        return collectives.all_reduce(REDUCE_SUM, x, scale, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return collectives.all_reduce(REDUCE_SUM, gradients[0], ctx.scale, ctx.groups), None, None


class AllGatherLayer(torch.autograd.Function):
    """All ranks' inputs along `dim`; the gradient of a rank's input is the sum of all ranks' for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim = dim
        return collectives.all_gather(x, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        size = process_groups.world_size()
        return collectives.reduce_scatter(REDUCE_SUM, gradients[0], 1.0, ctx.dim, size), None


def all_reduce(
    reduce_type: str,
    value: torch.Tensor,
    scale: float = 1.0,
    groups: Groups = None,
    cctx: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """`xm.all_reduce` of one tensor; with a gradient if `reduce_type` is `REDUCE_SUM`."""
    if reduce_type == REDUCE_SUM:
        return AllReduceSumLayer.apply(value, scale, groups)
    return collectives.all_reduce(reduce_type, value, scale, groups)


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`xm.all_gather` of one tensor, with a gradient."""
    return AllGatherLayer.apply(value, dim)


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """`w @ x` where each rank has some rows of `w` and some columns of `x`: its own columns of the product.

    w   (N / ranks, K): this rank's rows.
    x   (K, M): this rank's columns.
    """
    return all_gather(w, 0) @ x


class SyncBatchNorm(nn.SyncBatchNorm):
    """`torch.nn.SyncBatchNorm`, under torch_xla's name."""
