"""The same models with equal layers in `lax.scan`: parameters and the state of the optimizer stay stacked.

The stack of `blocks.0.up.weight`, `blocks.1.up.weight`, ... is the parameter `blocks.*.up.weight`.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
from jax import Array

import jax_models
from models import Workload

Params = dict[str, Array]

_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.)")


def stacked(params: Params) -> Params:
    """Parameters of layers that are alike in one array each, layers first; others as they are."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, value in params.items():
        groups.setdefault((_NUMBER.sub("*", name, count=1), value.shape), []).append(name)
    found: Params = {}
    for (common, _), names in groups.items():
        if len(names) > 1:
            found[common] = jnp.stack([params[name] for name in sorted(names, key=_layer)])
        else:
            found[names[0]] = params[names[0]]
    return found


def _layer(name: str) -> int:
    number = _NUMBER.search(name)
    return int(number[0]) if number else 0


def are_stacked(params: Params) -> bool:
    return any("*" in name for name in params)


def logits_of(workload: Workload, params: Params, x: Array) -> Array:
    """The logits of a batch."""
    layers = {name.split("*.", 1)[1]: value for name, value in params.items() if "*" in name}
    if workload.gpt is None:
        x, _ = jax.lax.scan(_mlp_layer, x, layers)
        [last] = [name.removesuffix(".weight") for name in params if re.match(r"\d+\.weight", name)]
        return jax_models.linear(params, last, x)
    heads = workload.gpt.heads

    def one(x: Array, layer: Params) -> tuple[Array, None]:
        return jax_models.block(_as("layer", layer), "layer", x, heads), None

    x = params["tokens.weight"][x] + params["positions.weight"]
    x, _ = jax.lax.scan(one, x, layers)
    return jax_models.layer_norm(params, "norm", x) @ params["head.weight"]


def _mlp_layer(x: Array, layer: Params) -> tuple[Array, None]:
    return jax.nn.relu(jax_models.linear(_as("layer", layer), "layer", x)), None


def _as(name: str, layer: Params) -> Params:
    return {f"{name}.{part}": value for part, value in layer.items()}
