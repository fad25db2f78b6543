"""How exactly products of float32 are computed: `torch.set_float32_matmul_precision` in XLA's words.

XLA knows three precisions of a product or convolution; what each is, is the device's affair: on CPU all are
float32, on GPUs the lower ones allow TF32, on TPUs they are three passes of bfloat16 and one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import torch

from torch_pjrt.graph.graph import Node

# PyTorch's name: JAX's.
PRECISIONS = {"highest": "highest", "high": "high", "medium": "default"}

_WIDE = (torch.float32, torch.complex64)

_nothing = nullcontext()

in_force = torch._C._get_float32_matmul_precision


def precision_of(node: Node, name: str) -> AbstractContextManager[Any]:
    """The context in which the node's rule is traced, where PyTorch's name for the precision is `name`."""
    if any(face.dtype in _WIDE for face in node.signature.faces):
        return jax.default_matmul_precision(PRECISIONS[name])
    return _nothing
