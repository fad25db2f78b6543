"""Telling where a block's forward and its backward begin: what the order of gathers follows (`ordering.py`).

A tensor is told in its buffer, in place, so that it stays the tensor that it is, also for what writes to it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_pjrt.extend import annotate, buffer_of, define_annotation, is_pjrt, value_of, wrap
from torch_pjrt_fsdp.annotated.gathering import in_backward
from torch_pjrt_fsdp.annotated.ordering import AS_THE_OTHER, HERE, HERE_BACK

Ahead = int | str | None

define_annotation(HERE, gradient=HERE_BACK)
define_annotation(HERE_BACK, gradient=False)


def begins(tree: Any, forward: int | None) -> Any:
    """What comes into a block, with which its forward begins; in a graph that is traced another tensor.

    forward  how many blocks before that the block's parameters may be gathered; None: at any time.
    """
    return _here(tree, forward, AS_THE_OTHER)


def ends(tree: Any, backward: int | None) -> Any:
    """What a block gives: with the gradient of that its backward begins. `backward`: as `forward`."""
    return _here(tree, AS_THE_OTHER, backward)


def _here(tree: Any, forward: Ahead, backward: Ahead) -> Any:
    x = _activation(tree)
    if x is None:
        return tree
    if torch.compiler.is_compiling():
        told = annotate(x, HERE, forward, backward)
        return tree_map_only(torch.Tensor, lambda t: told if t is x else t, tree)
    if not in_backward():  # a checkpoint computes again once there is the gradient
        _tell(x, HERE, forward, backward)
    if x.requires_grad and not x.is_leaf:
        x.register_hook(partial(_tell, kind=HERE_BACK, forward=forward, backward=backward))
    return tree


def _activation(tree: Any) -> torch.Tensor | None:
    floats = [
        x
        for x in tree_leaves(tree)
        if isinstance(x, torch.Tensor)
        and x.is_floating_point()
        and (torch.compiler.is_compiling() or _has_a_buffer(x))
    ]
    return next((x for x in floats if x.requires_grad), floats[0] if floats else None)


def _has_a_buffer(x: torch.Tensor) -> bool:
    """Not what `torch.func` puts around tensors, and no subclass."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
    return is_pjrt(x) and type(x) in (torch.Tensor, torch.nn.Parameter) and not wrapped(x)


def _tell(x: torch.Tensor, kind: str, forward: Ahead, backward: Ahead) -> None:
    """Annotate what is pending in the tensor's buffer, in place: it stays the tensor that it is."""
    buffer = buffer_of(x)
    if buffer.padded is not None or buffer.value is None or buffer.value.array is not None:
        return
    with torch.no_grad():
        told = annotate(wrap(buffer.value, buffer.spec), kind, forward, backward)
    buffer.value = value_of(told)
