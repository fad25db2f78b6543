"""What PyTorch's kernels on this CPU are like, where kinds of CPUs differ."""

from __future__ import annotations

import torch

# Without AVX-512 a convolution of volumes in bfloat16 has the plain kernel, whose result is contiguous
# whatever its input is. The device's is in channels last on every host.
CONVOLVES_BFLOAT16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
