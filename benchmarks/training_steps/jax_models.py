"""The same models as one writes them by hand in JAX: functions of a flat dict of arrays.

Parameters have PyTorch's names. The matrix of a linear layer is stored inputs by outputs and images have
their channels last, as is usual in JAX. Layers are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jax_scanned
from models import Workload

Params = dict[str, Array]
Forward = Callable[[Params, Array], tuple[Array, Params]]
"""Logits of a batch, and the running statistics that the batch has moved."""

TABLES = ("tokens.weight", "positions.weight")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def params_from_torch(weights: dict[str, np.ndarray]) -> tuple[Params, Params]:
    """Weights as PyTorch stores them in JAX's way: those that are trained, and running statistics."""
    arrays = {name: jnp.asarray(_turned(name, value)) for name, value in weights.items()}
    statistics = {n: a for n, a in arrays.items() if n.endswith(STATISTICS)}
    return {n: a for n, a in arrays.items() if n not in statistics}, statistics


def _turned(name: str, value: np.ndarray) -> np.ndarray:
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    return value.T if value.ndim == 2 and name not in TABLES else value


def linear(params: Params, name: str, x: Array) -> Array:
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


# --- the GPT of examples/train_gpt.py ---------------------------------------------------------------


def layer_norm(params: Params, name: str, x: Array) -> Array:
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


def block(params: Params, name: str, x: Array, heads: int) -> Array:
    before = layer_norm(params, f"{name}.norm_attention", x)
    x = x + attention(params, f"{name}.attention", before, heads)
    hidden = linear(params, f"{name}.up", layer_norm(params, f"{name}.norm_mlp", x))
    return x + linear(params, f"{name}.down", jax.nn.gelu(hidden, approximate=False))


def gpt(params: Params, tokens: Array, layers: int, heads: int) -> tuple[Array, Params]:
    x = params["tokens.weight"][tokens] + params["positions.weight"]
    for i in range(layers):
        x = block(params, f"blocks.{i}", x, heads)
    return layer_norm(params, "norm", x) @ params["head.weight"], {}


# --- the ResNet of examples/train_digits.py ---------------------------------------------------------


def convolution(params: Params, name: str, x: Array, stride: int = 1) -> Array:
    kernel = params[f"{name}.weight"]
    pad = [(size // 2, size // 2) for size in kernel.shape[:2]]
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def batch_norm(params: Params, moved: Params, name: str, x: Array) -> Array:
    """In training; the running statistics in `moved` become those that this batch has moved."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    count = x.size // x.shape[-1]
    for statistic, now in (("mean", mean), ("var", variance * count / (count - 1))):
        key = f"{name}.running_{statistic}"
        moved[key] = 0.9 * moved[key] + 0.1 * jax.lax.stop_gradient(now)
    moved[f"{name}.num_batches_tracked"] += 1
    scaled = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return scaled * params[f"{name}.weight"] + params[f"{name}.bias"]


def residual(params: Params, moved: Params, name: str, x: Array, stride: int = 1) -> Array:
    y = convolution(params, f"{name}.body.0", x, stride)
    y = jax.nn.relu(batch_norm(params, moved, f"{name}.body.1", y))
    y = batch_norm(params, moved, f"{name}.body.4", convolution(params, f"{name}.body.3", y))
    wider = f"{name}.shortcut.weight" in params
    return jax.nn.relu(y + (convolution(params, f"{name}.shortcut", x, stride) if wider else x))


def max_pool(x: Array) -> Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def resnet(params: Params, statistics: Params, images: Array) -> tuple[Array, Params]:
    moved = dict(statistics)
    x = images.transpose(0, 2, 3, 1)
    x = jax.nn.relu(batch_norm(params, moved, "1", convolution(params, "0", x)))
    x = max_pool(residual(params, moved, "3", x))
    x = residual(params, moved, "6", residual(params, moved, "5", x), stride=2)
    return linear(params, "10", x.mean((1, 2))), moved


# --- an MLP -----------------------------------------------------------------------------------------


def mlp(params: Params, x: Array) -> tuple[Array, Params]:
    names = sorted({name.split(".")[0] for name in params}, key=int)
    for name in names[:-1]:
        x = jax.nn.relu(linear(params, name, x))
    return linear(params, names[-1], x), {}


def logits_of(
    workload: Workload, params: Params, statistics: Params, x: Array
) -> tuple[Array, Params]:
    """The logits of a batch, and the running statistics afterwards."""
    if jax_scanned.are_stacked(params):
        return jax_scanned.logits_of(workload, params, x), {}
    if workload.gpt is not None:
        return gpt(params, x, workload.gpt.layers, workload.gpt.heads)
    return resnet(params, statistics, x) if statistics else mlp(params, x)


def loss_of(
    workload: Workload, params: Params, statistics: Params, x: Array, targets: Array
) -> tuple[Array, Params]:
    """Mean cross entropy, and the running statistics afterwards."""
    logits, moved = logits_of(workload, params, statistics, x)
    likelihoods = jax.nn.log_softmax(logits)
    named = jnp.take_along_axis(likelihoods, targets[..., None], axis=-1).mean()
    share = workload.smoothing
    return -((1 - share) * named + share * likelihoods.mean()), moved
