"""What `SyncBatchNorm` is made of: the steps of batch normalization between which ranks exchange sums.

PyTorch has them for CUDA alone. Statistics have a number for each channel, dim 1 of the input, and are at
least float32.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _dims(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _along(v: Tensor, x: Tensor) -> Tensor:
    """Numbers of channels, so that they broadcast over the input."""
    return v.to(_wide(x).dtype).view(1, -1, *[1] * (x.dim() - 2))


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of this rank's input."""
    var, mean = torch.var_mean(_wide(input), _dims(input), correction=0)
    return mean, torch.rsqrt(var + eps)


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of all ranks' inputs: of each (ranks, channels) and its count.

    The running statistics are moved towards them, the variance towards the unbiased one.
    """
    weights = counts.to(mean.dtype).view(-1, 1)
    total = weights.sum()
    whole_mean = (mean * weights).sum(0) / total
    variances = 1 / invstd.square() - eps + (mean - whole_mean).square()
    variance = (variances * weights).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(whole_mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((variance * (total / (total - 1))).to(running_var.dtype), momentum)
    return whole_mean, torch.rsqrt(variance + eps)


def batch_norm_elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    y = (_wide(input) - _along(mean, input)) * _along(invstd, input)
    if weight is not None:
        y = y * _along(weight, input)
    if bias is not None:
        y = y + _along(bias, input)
    return y.to(input.dtype)


def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """This rank's sums of the gradient and of gradient times distance; its gradients of weight and bias."""
    grad, dims = _wide(grad_out), _dims(input)
    total = grad.sum(dims)
    dotted = (grad * (_wide(input) - _along(mean, input))).sum(dims)
    dtype = input.dtype if weight is None else weight.dtype
    return total, dotted, (dotted * invstd).to(dtype), total.to(dtype)


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of the input, from all ranks' sums and counts."""
    n = count.sum()
    distances = _wide(input) - _along(mean, input)
    slope = _along(invstd.square() * (sum_dy_xmu / n), input)
    rest = _wide(grad_out) - _along(sum_dy / n, input) - distances * slope
    scale = invstd if weight is None else invstd * weight.to(invstd.dtype)
    return (rest * _along(scale, input)).to(input.dtype)


KERNELS = (
    batch_norm_stats,
    batch_norm_gather_stats_with_counts,
    batch_norm_elemt,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
)


def register(key: str) -> torch.library.Library:
    """Give PyTorch the kernels. They live as long as what is returned."""
    library = torch.library.Library("aten", "IMPL")
    for kernel in KERNELS:
        library.impl(kernel.__name__, kernel, key)
    return library
