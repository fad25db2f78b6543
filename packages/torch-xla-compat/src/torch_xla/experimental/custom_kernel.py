"""Kernels by torch_xla's names: `torch-pjrt-kernels`, which must be installed for attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_pjrt
from torch_pjrt.errors import UnsupportedError
from torch_xla.absent import absent

_PAGED = "`torch_pjrt_kernels.ragged_paged_attention` and `paged_attention` lay out pages otherwise"
__getattr__ = absent(
    __name__,
    {
        "paged_attention": _PAGED,
        "multi_queries_paged_attention": _PAGED,
        "ragged_paged_attention": _PAGED,
        "FlashAttention": "`flash_attention` has its own gradient",
        "trace_pallas": "`torch_pjrt_kernels.pallas_op` makes an operator of a Pallas kernel",
        "quantized_matmul_int8": "`torch_pjrt_quant.quantize_` makes int8 layers",
    },
)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """Attention whose memory grows with the length alone: `torch_pjrt_kernels.flash_attention`.

    q, k, v     (batch, heads, length, size).
    q_segment_ids, kv_segment_ids    (batch, length): positions of one number see each other.
    sm_scale    a factor of the scores. ab: what is added to them, (batch, heads, length, length).

    Where the tensors lie on a mesh the partitioner splits it: `partition_spec` and `mesh` are not used.
    """
    try:
        from torch_pjrt_kernels import flash_attention as ours
    except ImportError as error:
        raise UnsupportedError(
            "`flash_attention` is in a package that is not installed.",
            hint="pip install 'torch-pjrt-xla-compat[kernels]'",
        ) from error
    segments = None
    if q_segment_ids is not None:
        segments = (q_segment_ids, q_segment_ids if kv_segment_ids is None else kv_segment_ids)
    return ours(q, k, v, bias=ab, segments=segments, is_causal=causal, scale=sm_scale)


def gmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] | None = None,
    group_offset: torch.Tensor | None = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """Rows of `lhs` (m, k) in groups, each by its own matrix of `rhs` (groups, k, n): (m, n).

    group_sizes     how many rows each group has, int32; rows behind the last group are zeros.
    transpose_rhs   the matrices are given as (groups, n, k).

    XLA chooses the tiles: `tiling` is not used. Raises `UnsupportedError` for `group_offset`.
    """
    from jax import lax

    _refuse_offset(group_offset)
    matrices = rhs.transpose(1, 2) if transpose_rhs else rhs
    return torch_pjrt.jax_function(lax.ragged_dot)(lhs, matrices, group_sizes)


def tgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] = (512, 512, 512),
    group_offset: torch.Tensor | None = None,
    num_actual_groups: int | None = None,
) -> torch.Tensor:
    """Of each group the product of its columns of `lhs` (k, m) by its rows of `rhs` (m, n): (groups, k, n).

    group_sizes     how many of the m each group has, int32; a group of none gives zeros.

    `tiling` is not used. Raises `UnsupportedError` for `group_offset` and for fewer groups than all.
    """
    _refuse_offset(group_offset)
    if num_actual_groups not in (None, group_sizes.shape[0]):
        raise UnsupportedError(
            "Products of some groups only.",
            saw=f"num_actual_groups={num_actual_groups} of {group_sizes.shape[0]}",
            hint="slice `group_sizes`, `lhs` and `rhs`",
        )
    return torch_pjrt.jax_function(_products_of_groups)(lhs, rhs, group_sizes)


def gmm_backward(
    grad: torch.Tensor,
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] = (512, 512, 512),
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `gmm`'s `lhs` and `rhs`, where that of its result is `grad`."""
    return gmm(grad, rhs, group_sizes, transpose_rhs=True), tgmm(lhs.t(), grad, group_sizes)


class GMM(torch.autograd.Function):
    """`GMM.apply(lhs, rhs, group_sizes, tiling)`: `gmm`, which has its own gradient, too."""

    @staticmethod
    def forward(
        ctx: Any,
        lhs: torch.Tensor,
        rhs: torch.Tensor,
        group_sizes: torch.Tensor,
        tiling: tuple[int, int, int] = (512, 512, 512),
    ) -> torch.Tensor:
        ctx.save_for_backward(lhs, rhs, group_sizes)
        return gmm(lhs, rhs, group_sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return *gmm_backward(gradients[0], *ctx.saved_tensors), None, None


def _products_of_groups(lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    from jax import lax

    along_rows = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([1], [0]), ([], [])),
        lhs_ragged_dimensions=[1],
        rhs_group_dimensions=[],
    )
    return lax.ragged_dot_general(lhs, rhs, group_sizes, along_rows)


def _refuse_offset(group_offset: torch.Tensor | None) -> None:
    if group_offset is not None:
        raise UnsupportedError(
            "Groups are taken from the first one on.",
            saw="group_offset=",
            hint="slice `group_sizes` and the rows of the groups that are wanted",
        )


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Any]
) -> Callable[..., Any]:
    """A function of JAX arrays, `pl.pallas_call` within, as a function of tensors.

    `output_shape_dtype_fn` is not used: JAX says what the kernel gives.
    """
    return torch_pjrt.jax_function(kernel)
