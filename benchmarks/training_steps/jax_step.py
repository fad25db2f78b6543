"""A training step in JAX: one jitted function that is given its parameters and optimizer state to reuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jax_models
import jax_scanned
from jax_models import Params
from models import DECAY, MOMENTUM, RATE, SGD_RATE, Workload


class Adam(NamedTuple):
    """Running means of the gradients and of their squares, and how many steps they have seen."""

    mean: Params
    square: Params
    steps: Array


def start(workload: Workload, params: Params) -> Any:
    """The optimizer's state before the first step."""
    zeros = partial(jax.tree.map, jnp.zeros_like)
    if not workload.adam:
        return zeros(params)
    return Adam(zeros(params), zeros(params), jnp.zeros((), jnp.int32))


def adamw(params: Params, state: Adam, grads: Params) -> tuple[Params, Adam]:
    """PyTorch's defaults but the learning rate."""
    beta1, beta2, epsilon, decay = 0.9, 0.999, 1e-8, 1e-2
    steps = state.steps + 1
    mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mean, grads)
    square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state.square, grads)
    scale1, scale2 = 1 - beta1**steps, 1 - beta2**steps

    def moved(p: Array, m: Array, v: Array) -> Array:
        return p * (1 - RATE * decay) - RATE / scale1 * m / (jnp.sqrt(v / scale2) + epsilon)

    return jax.tree.map(moved, params, mean, square), Adam(mean, square, steps)


def sgd(params: Params, state: Params, grads: Params) -> tuple[Params, Params]:
    """With Nesterov's momentum and weight decay, as PyTorch has them."""
    grads = jax.tree.map(lambda g, p: g + DECAY * p, grads, params)
    state = jax.tree.map(lambda v, g: MOMENTUM * v + g, state, grads)
    params = jax.tree.map(lambda p, g, v: p - SGD_RATE * (g + MOMENTUM * v), params, grads, state)
    return params, state


def train_step(workload: Workload) -> Any:
    """A function of parameters, running statistics, optimizer state, inputs and targets, jitted.

    It gives the first three anew, and the loss.
    """
    optimize: Callable[..., Any] = adamw if workload.adam else sgd
    loss_of = partial(jax_models.loss_of, workload)

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Params, statistics: Params, state: Any, x: Array, targets: Array) -> Any:
        graded = jax.value_and_grad(loss_of, has_aux=True)
        (loss, moved), grads = graded(params, statistics, x, targets)
        params, state = optimize(params, state, grads)
        return params, moved, state, loss

    return step


def stepping(
    workload: Workload, weights: dict[str, np.ndarray], *, scanned: bool = False
) -> Callable[[np.ndarray, np.ndarray], Any]:
    """A function that takes one step from where the last one ended, and gives the loss.

    scanned  equal layers run in `lax.scan`, and all that belongs to them stays stacked between steps.
    """
    params, statistics = jax_models.params_from_torch(weights)
    if scanned:
        if statistics:
            raise SystemExit("This model has no run of equal layers.")
        params = jax_scanned.stacked(params)
    state = start(workload, params)
    step = train_step(workload)

    def train(x: np.ndarray, targets: np.ndarray) -> Any:
        nonlocal params, statistics, state
        params, statistics, state, loss = step(params, statistics, state, x, targets)
        return loss

    return train
