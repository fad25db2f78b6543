"""Convolutions under `torch.jit.trace`.

PyTorch traces no call of `convolution`, but the `_convolution` that its own kernel calls. Ours calls none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.overloads import aten

Tensor = torch.Tensor


def traced(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Asked only while something is traced, of whatever device. The last four arguments are cuDNN's."""
    cudnn = torch.backends.cudnn
    return aten._convolution.default(
        *(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups),
        *(cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32),
    )


BY_KEY: dict[str, dict[Any, Any]] = {"Tracer": {aten.convolution.default: traced}}
