"""`rotary` as one operator, with a backward that is one."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from torch_pjrt.extend import lowers
from torch_pjrt.plugin import rules
from torch_pjrt_kernels.attention.choice import KERNEL, LOOPS, Way, first_without
from torch_pjrt_kernels.attention.tpu import objection_of_the_chip
from torch_pjrt_kernels.one_node import one_node
from torch_pjrt_kernels.own.rule_of_dims import SplittingRule
from torch_pjrt_kernels.own.sharding import on_chips
from torch_pjrt_kernels.rotary import rotary_tpu

Tensor = torch.Tensor


@one_node
def rotary(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the form of halves: `input * cos + cat(-second, first) * sin`.

    input   of shape (batch, heads, positions, width), floats, of an even width. `first` and `second` are the
            halves of its last dim.
    cos     (positions, width) or (batch, positions, width), floats. sin: the same. They get no gradient.

    The result has the input's shape and dtype and is rounded once: products are in float32, in float64 for
    float64. On TPUs a kernel computes it, forward and backward, for bfloat16 and float32, a width that is a
    multiple of 128 and positions that are one of 16. Raises `ValueError` for shapes that do not fit, and for
    `cos` and `sin` that want a gradient.
    """
    b, _, p, w = input.shape if input.dim() == 4 else (0, 0, 0, 1)
    if w % 2 or cos.shape != sin.shape or cos.shape not in ((p, w), (b, p, w)):
        raise ValueError(
            "rotary takes (batch, heads, positions, width) and twice (positions, width) or "
            f"(batch, positions, width); saw {list(input.shape)}, {list(cos.shape)}, {list(sin.shape)}"
        )
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        raise ValueError("rotary has no gradient of cos and sin: detach them")
    return torch.ops.torch_pjrt_kernels.rotary(input, cos, sin, False)


@torch.library.custom_op("torch_pjrt_kernels::rotary", mutates_args=())
def _rotary(input: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    """`back`: the gradient of `rotary`, of that of its result."""
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    x, c, s = (t.to(wide) for t in (input, cos.unsqueeze(-3), sin.unsqueeze(-3)))
    first, second = (x * s if back else x).chunk(2, -1)
    other = torch.cat((second, -first), -1) if back else torch.cat((-second, first), -1) * s
    return (x * c + other).to(input.dtype)


@_rotary.register_fake
def _(input: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    return input.new_empty(input.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:3])
    ctx.back = inputs[3]


def _differentiated(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    back = not ctx.back
    return torch.ops.torch_pjrt_kernels.rotary(grad, *ctx.saved_tensors, back), None, None, None


torch.library.register_autograd("torch_pjrt_kernels::rotary", _differentiated, setup_context=_keep)


def way_of(input: Any, cos: Any, sin: Any, *rest: Any) -> Way:
    """How a call is computed, and what the kernel, or the chip, has against it."""
    _, _, positions, width = input.shape
    against = rotary_tpu.objection(positions, width, input.dtype.name, cos.dtype.name)
    if cos.dtype != sin.dtype:
        against = against or f"cos is {cos.dtype.name}, and sin is {sin.dtype.name}"
    return first_without({KERNEL: against or objection_of_the_chip(), LOOPS: None})


@lowers(torch.ops.torch_pjrt_kernels.rotary.default)
def _rule(input: Any, cos: Any, sin: Any, back: bool) -> Any:
    import jax.numpy as jnp

    if way_of(input, cos, sin).name == KERNEL:
        tables = [x.reshape(-1, *x.shape[-2:]) for x in (cos, sin)]
        of_table = f"{'b' if len(tables[0]) == len(input) else 'one'} p w"
        rule = f"b h p w, {of_table}, {of_table} -> b h p w"
        split = SplittingRule.parsed(rule, 3, 1, ("b", "h", "p"))
        return on_chips(partial(rotary_tpu.turned, back=bool(back)), split, input, *tables)
    wide = rules.opmath(input.dtype)
    x, c, s = (t.astype(wide) for t in (input, cos, sin))
    c, s = (jnp.expand_dims(t, -3) for t in (c, s))
    half = x.shape[-1] // 2
    parts = [(t[..., :half], t[..., half:]) for t in (x, c, s)]
    (first, second), (c_first, c_second), (s_first, s_second) = parts
    if back:
        turned = (first * c_first + second * s_second, second * c_second - first * s_first)
    else:
        turned = (first * c_first - second * s_first, second * c_second + first * s_second)
    return jnp.concatenate([t.astype(input.dtype) for t in turned], -1)
