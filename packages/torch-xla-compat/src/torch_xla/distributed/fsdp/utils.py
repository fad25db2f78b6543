"""`checkpoint_module`: a module whose activations are computed again in backward."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from torch_xla.distributed.spmd import apply_xla_patch_to_nn_linear

__all__ = ["apply_xla_patch_to_nn_linear", "checkpoint_module"]


def checkpoint_module(module: nn.Module, **options: Any) -> nn.Module:
    """`module`, which keeps its inputs only and computes the rest again in backward."""
    return checkpoint_wrapper(module)
