"""Lowerings of `_fused_*`: a whole optimizer step over lists of tensors, as `fused=True` asks for.

What every rule here keeps: results are the written lists one after another (parameters, gradients, then
the state, in the order of the schema). With `grad_scale` the gradients are divided by it first; where
`found_inf` is 1 nothing changes. Arithmetic follows PyTorch's own kernels:
float32 for float16 and bfloat16, rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_pjrt.lowering.promote import opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array
Lists = Sequence[Sequence[Array]]
table = LoweringTable("optimizer")


def _over_lists(
    one: Callable[..., tuple[Array, ...]],
    lists: Lists,
    grad_scale: Array | None,
    found_inf: Array | None,
) -> tuple[Array, ...]:
    """`one(parameter, gradient, *state)` for each position of the lists; empty lists stay empty.

    `one` computes in `opmath` and returns the new parameter and the new state.
    """
    columns: list[list[Array]] = [[] for _ in lists]
    present = [i for i, each in enumerate(lists) if each]
    for row in zip(*(lists[i] for i in present), strict=True):
        wide = [x.astype(opmath(x.dtype)) for x in row]
        if grad_scale is not None:
            wide[1] = wide[1] / grad_scale.astype(wide[1].dtype)
        parameter, *state = one(*wide)
        new = [parameter, wide[1], *state]
        for i, wide_x, old in zip(present, new, row, strict=True):
            x = wide_x.astype(old.dtype)
            columns[i].append(x if found_inf is None else jnp.where(found_inf == 1, old, x))
    return tuple(x for column in columns for x in column)


def _adam(*, decoupled: bool) -> Callable[..., tuple[Array, ...]]:
    """Adam, or AdamW where the weight decay is decoupled from the gradient (Loshchilov and Hutter, 2019)."""

    def rule(
        self: list[Array],
        grads: list[Array],
        exp_avgs: list[Array],
        exp_avg_sqs: list[Array],
        max_exp_avg_sqs: list[Array],
        state_steps: list[Array],
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> tuple[Array, ...]:
        steps = iter(state_steps)

        def one(p: Array, g: Array, m: Array, v: Array, *largest: Array) -> tuple[Array, ...]:
            rate, step = jnp.asarray(lr).astype(p.dtype), next(steps).astype(p.dtype)
            b1, b2 = jnp.asarray(beta1).astype(p.dtype), jnp.asarray(beta2).astype(p.dtype)
            decay = jnp.asarray(weight_decay).astype(p.dtype)
            g = -g if maximize else g
            if decoupled:
                p = p - rate * decay * p
            else:
                g = g + decay * p
            m = m + (1 - b1) * (g - m)
            v = b2 * v + (1 - b2) * g * g
            largest = (jnp.maximum(largest[0], v),) if amsgrad else ()
            spread = jnp.sqrt(largest[0] if amsgrad else v) / jnp.sqrt(1 - b2**step)  # pyright: ignore[reportGeneralTypeIssues]
            p = p - rate / (1 - b1**step) * m / (spread + jnp.asarray(eps).astype(p.dtype))
            return p, m, v, *largest

        lists = (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
        return _over_lists(one, lists, grad_scale, found_inf)

    return rule


for packet, decoupled in ((aten._fused_adam, False), (aten._fused_adamw, True)):
    for overload in (packet.default, packet.tensor_lr):
        table.add(overload, _adam(decoupled=decoupled))


@table.lowers(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
def _fused_sgd(
    self: list[Array],
    grads: list[Array],
    momentum_buffer_list: list[Array],
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[Array, ...]:
    """At the first step the momentum is the gradient itself, as in `torch.optim.SGD`."""

    def one(p: Array, g: Array, *buffers: Array) -> tuple[Array, ...]:
        def number(x: Any) -> Array:
            return jnp.asarray(x).astype(p.dtype)

        g = (-g if maximize else g) + number(weight_decay) * p
        if buffers:
            kept = number(momentum) * buffers[0] + (1 - number(dampening)) * g
            buffers = (g if is_first_step else kept,)
            g = g + number(momentum) * buffers[0] if nesterov else buffers[0]
        return p - number(lr) * g, *buffers

    return _over_lists(one, (self, grads, momentum_buffer_list), grad_scale, found_inf)


def _adagrad(*, returns_steps: bool) -> Callable[..., tuple[Array, ...]]:
    """Adagrad (Duchi, Hazan and Singer, 2011). One of the overloads returns the steps as well."""

    def rule(
        self: list[Array],
        grads: list[Array],
        state_sums: list[Array],
        state_steps: list[Array],
        *,
        lr: Any,
        lr_decay: Any,
        weight_decay: Any,
        eps: Any,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> tuple[Array, ...]:
        steps = iter(state_steps)

        def one(p: Array, g: Array, total: Array) -> tuple[Array, ...]:
            def number(x: Any) -> Array:
                return jnp.asarray(x).astype(p.dtype)

            step = next(steps).astype(p.dtype)
            rate = number(lr) / (1 + (step - 1) * number(lr_decay))
            g = (-g if maximize else g) + number(weight_decay) * p
            total = total + g * g
            return p - rate * g / (jnp.sqrt(total) + number(eps)), total

        results = _over_lists(one, (self, grads, state_sums), grad_scale, found_inf)
        return (*results, *state_steps) if returns_steps else results

    return rule


table.add(aten._fused_adagrad.default, _adagrad(returns_steps=True))
table.add(aten._fused_adagrad.tensor_lr, _adagrad(returns_steps=False))
