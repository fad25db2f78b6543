"""`scan`: a function over the leading dim of tensors, with something carried from call to call.

It is recorded as calls one after another. Iterations that are alike become one loop of the program by
themselves, forward and backward (the page `rolled-layers`), so that what XLA compiles does not grow with
their
number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from torch_pjrt.errors import SettingError
from torch_xla.absent import absent

__getattr__ = absent(
    __name__,
    dict.fromkeys(
        ("Scan", "value_and_grad_partitioned"),
        "`scan` is recorded call by call, and its gradient is autograd's",
    ),
)


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Any = None,
    is_fn_pure: bool = True,
) -> tuple[Any, Any]:
    """`carry, y = fn(carry, x)` for each `x` of `xs` along dim 0; the last carry, and the ys stacked along
    dim 0.

    init, xs    nests of tensors; those of `xs` have one length along dim 0, at least 1. Else `SettingError`.
    fn          where it gives None in place of a tensor of `y`, there is None in the ys.

    `partition_fn` and `is_fn_pure` are accepted and not used.
    """
    if not callable(fn):
        raise SettingError("`scan` calls a function.", saw=repr(fn))
    leaves, nest = tree_flatten(xs)
    lengths = {len(leaf) for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise SettingError(
            "`scan` goes along the first dim of all of `xs`.",
            saw=f"tensors with {sorted(lengths)} elements along it",
            expected="one length, of 1 at least",
        )
    carry, ys = init, []
    for elements in zip(*(leaf.unbind() for leaf in leaves), strict=True):
        carry, y = fn(carry, tree_unflatten(list(elements), nest))
        ys.append(y)
    return carry, tree_map(_stacked, *ys)


def _stacked(*one: Any) -> Any:
    return None if one[0] is None else torch.stack(one)
