"""The GPT of `examples/train_gpt.py` and its AdamW as one writes them by hand in JAX.

Parameters are a flat dict with PyTorch's names. The matrix of a linear layer is stored inputs by
outputs, as is usual in JAX. Layers are unrolled, and a step is one jitted function that is given
its parameters and optimizer state to reuse.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Params = dict[str, Array]


class Adam(NamedTuple):
    """Running means of the gradients and of their squares, and how many steps they have seen."""

    mean: Params
    square: Params
    steps: Array


def params_from_torch(weights: dict[str, np.ndarray]) -> Params:
    """Weights as PyTorch stores them, outputs by inputs, in JAX's way."""
    tables = ("tokens.weight", "positions.weight")
    return {
        name: jnp.asarray(value.T if value.ndim == 2 and name not in tables else value)
        for name, value in weights.items()
    }


def start(params: Params) -> Adam:
    """The state before the first step."""
    zeros = partial(jax.tree.map, jnp.zeros_like)
    return Adam(zeros(params), zeros(params), jnp.zeros((), jnp.int32))


def linear(params: Params, name: str, x: Array) -> Array:
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def norm(params: Params, name: str, x: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    scaled = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return scaled * params[f"{name}.weight"] + params[f"{name}.bias"]


def attention(params: Params, name: str, x: Array, heads: int) -> Array:
    batch, length, width = x.shape
    query, key, value = (
        part.reshape(batch, length, heads, width // heads)
        for part in jnp.split(linear(params, f"{name}.inputs", x), 3, axis=-1)
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // heads) ** -0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, value)
    return linear(params, f"{name}.output", mixed.reshape(batch, length, width))


def loss_of(params: Params, tokens: Array, targets: Array, layers: int, heads: int) -> Array:
    x = params["tokens.weight"][tokens] + params["positions.weight"]
    for i in range(layers):
        block = f"blocks.{i}"
        x = x + attention(
            params, f"{block}.attention", norm(params, f"{block}.norm_attention", x), heads
        )
        hidden = linear(params, f"{block}.up", norm(params, f"{block}.norm_mlp", x))
        x = x + linear(params, f"{block}.down", jax.nn.gelu(hidden, approximate=False))
    logits = norm(params, "norm", x) @ params["head.weight"]
    likelihoods = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return -likelihoods.mean()


@partial(jax.jit, static_argnames=("layers", "heads"), donate_argnames=("params", "state"))
def train_step(
    params: Params, state: Adam, tokens: Array, targets: Array, layers: int, heads: int
) -> tuple[Params, Adam, Array]:
    """One step of AdamW with PyTorch's defaults but a learning rate of 3e-4."""
    rate, beta1, beta2, epsilon, decay = 3e-4, 0.9, 0.999, 1e-8, 1e-2
    loss, grads = jax.value_and_grad(loss_of)(params, tokens, targets, layers, heads)
    steps = state.steps + 1
    mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mean, grads)
    square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state.square, grads)
    scale1, scale2 = 1 - beta1**steps, 1 - beta2**steps

    def moved(p: Array, m: Array, v: Array) -> Array:
        return p * (1 - rate * decay) - rate / scale1 * m / (jnp.sqrt(v / scale2) + epsilon)

    return jax.tree.map(moved, params, mean, square), Adam(mean, square, steps), loss
