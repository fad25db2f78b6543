"""The same training step written by hand in JAX: layers in `lax.scan`, checkpointed, one jitted function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from llama import EPSILON, RATE, Sizes, angles_of, hashed, seed_of

Params = dict[str, Any]


def params_of(sizes: Sizes) -> Params:
    """Weights, those of the layers in stacks; matrices inputs by results."""

    def matrix(layer: int, name: str, shape: tuple[int, int]) -> Array:
        positions = jnp.arange(shape[0] * shape[1], dtype=jnp.uint32)
        return hashed(positions, seed_of(layer, name)).astype(jnp.bfloat16).reshape(shape)

    @partial(jax.jit, static_argnums=(0, 1))
    def stack(name: str, shape: tuple[int, int]) -> Array:
        return jnp.stack([matrix(i, name, shape).T for i in range(sizes.layers)])

    table = (sizes.vocabulary, sizes.width)
    ones = partial(jnp.ones, dtype=jnp.bfloat16)
    layers = {name: stack(name, shape) for name, shape in sizes.matrices_of_a_layer.items()}
    for name in ("before_attention", "before_feeding"):
        layers[name] = ones((sizes.layers, sizes.width))
    outside = {
        name: jax.jit(matrix, static_argnums=(0, 1, 2))(-1, name, table)
        for name in ("tokens", "head")
    }
    return {"layers": layers, "norm": ones(sizes.width), **outside}


def norm(x: Array, weight: Array) -> Array:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + EPSILON)
    return wide.astype(x.dtype) * weight


def turned(x: Array, cosine: Array, sine: Array) -> Array:
    """Heads that know their positions; (batch, length, heads, width of a head)."""
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cosine - second * sine, second * cosine + first * sine), -1)


def layer_of(sizes: Sizes, fused: bool, turning: tuple[Array, Array], x: Array, p: Params) -> Array:
    def heads(name: str) -> Array:
        return (y @ p[name]).reshape(*x.shape[:2], sizes.heads, -1)

    y = norm(x, p["before_attention"])
    query, key = (turned(heads(name), *turning) for name in ("query", "key"))
    how = "cudnn" if fused else "xla"
    mixed = jax.nn.dot_product_attention(
        query, key, heads("value"), is_causal=True, implementation=how
    )
    x = x + mixed.reshape(x.shape) @ p["output"]
    y = norm(x, p["before_feeding"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def loss_of(
    sizes: Sizes, fused: bool, checkpointed: bool, params: Params, tokens: Array, targets: Array
) -> Array:
    angles = angles_of(sizes)[:, None]
    turning = jnp.asarray(np.cos(angles), jnp.bfloat16), jnp.asarray(np.sin(angles), jnp.bfloat16)
    layer = partial(layer_of, sizes, fused, turning)
    layer = jax.checkpoint(layer) if checkpointed else layer
    x, _ = jax.lax.scan(
        lambda x, p: (layer(x, p), None), params["tokens"][tokens], params["layers"]
    )
    logits = (norm(x, params["norm"]) @ params["head"].T).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def train_step(sizes: Sizes, *, fused: bool, checkpointed: bool = True) -> Any:
    """A jitted function of weights, two numbers for each, the count of steps, and a batch.

    It gives the first three anew, and the loss. AdamW with PyTorch's defaults but the rate.
    """
    beta1, beta2, epsilon, decay = 0.9, 0.999, 1e-8, 1e-2

    def moved(p: Array, m: Array, v: Array, scale1: Array, scale2: Array) -> Array:
        change = (m / scale1) / (jnp.sqrt(v / scale2) + epsilon)
        return (p * (1 - RATE * decay) - RATE * change).astype(p.dtype)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, state: Any, count: Array, tokens: Array, targets: Array) -> Any:
        value_and_grad = jax.value_and_grad(partial(loss_of, sizes, fused, checkpointed))
        loss, grads = value_and_grad(params, tokens, targets)
        mean, square = state
        mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, mean, grads)
        square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, square, grads)
        scales = 1 - beta1 ** (count + 1), 1 - beta2 ** (count + 1)
        params = jax.tree.map(lambda p, m, v: moved(p, m, v, *scales), params, mean, square)
        return params, (mean, square), count + 1, loss

    return step


def stepping(sizes: Sizes) -> Callable[[np.ndarray, np.ndarray], Any]:
    """A function that takes one step from where the last one ended, and gives the loss."""
    fused = jax.devices()[0].platform == "gpu"
    step = train_step(sizes, fused=fused)
    params = params_of(sizes)
    zeros = partial(jax.tree.map, jnp.zeros_like)
    state, count = (zeros(params), zeros(params)), jnp.zeros((), jnp.float32)

    def train(tokens: np.ndarray, targets: np.ndarray) -> Any:
        nonlocal params, state, count
        params, state, count, loss = step(params, state, count, tokens, targets)
        return loss

    return train
