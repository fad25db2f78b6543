"""Modules within a module that a policy chooses, each wrapped: what both kinds of FSDP do first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla.distributed.fsdp.wrap import recursive_wrap


def wrap_children(
    module: torch.nn.Module, policy: Callable[..., Any], wrapper: Callable[..., Any], **options: Any
) -> None:
    """Put what `wrapper` makes in the place of each module that the policy chooses; `options` are its own."""
    recursive_wrap(
        module,
        policy,
        wrapper_cls=wrapper,
        ignored_modules=set(),
        ignored_params=set(),
        only_wrap_children=True,
        **options,
    )
