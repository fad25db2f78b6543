"""The same Llama written by hand in JAX: prefill and decode, each a jitted function that is given the cache.

Weights are those of Hugging Face's model; matrices are stored inputs by results, and layers are unrolled. A
cache has, for each layer, keys and values of (batch, room, kv_heads, width of a head).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from text_sizes import Sizes, padded

Layer = dict[str, Array]
Params = dict[str, Any]
Cache = list[tuple[Array, Array]]

NAMES = {
    "before_attention": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "before_feeding": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def params_from_torch(sizes: Sizes, weights: Mapping[str, torch.Tensor]) -> Params:
    """The weights that Hugging Face's `state_dict` names."""

    def array(name: str) -> Array:
        value = weights[f"{name}.weight"].numpy()
        is_matrix = value.ndim == 2 and name != "model.embed_tokens"
        return jnp.asarray(np.ascontiguousarray(value.T) if is_matrix else value)

    layers = [
        {mine: array(f"model.layers.{i}.{its}") for mine, its in NAMES.items()}
        for i in range(sizes.layers)
    ]
    outside = {"tokens": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    return {"layers": layers, **{mine: array(its) for mine, its in outside.items()}}


def empty_cache(sizes: Sizes, room: int) -> Cache:
    shape = (1, room, sizes.kv_heads, sizes.width // sizes.heads)
    return [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(sizes.layers)]


def norm(sizes: Sizes, x: Array, weight: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + sizes.epsilon) * weight


def turned(sizes: Sizes, x: Array, positions: Array) -> Array:
    """Heads that know their positions, (length,); (batch, length, heads, width of a head)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] / sizes.base ** (jnp.arange(half) / half)
    cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cosine - second * sine, second * cosine + first * sine), -1)


def attention(query: Array, key: Array, value: Array, seen: Array) -> Array:
    """Of queries (b, q, heads, h) to keys and values (b, k, kv_heads, h), where `seen`, (q, k)."""
    batch, length, heads, width = query.shape
    # n heads of keys and values, g queries that share one
    query = query.reshape(batch, length, key.shape[2], -1, width)
    scores = jnp.einsum("bqngh,bknh->bngqk", query, key) * width**-0.5
    lowest = jnp.finfo(
        scores.dtype
    ).min  # a place of padding sees nothing; its keys must stay finite
    shares = jax.nn.softmax(jnp.where(seen, scores, lowest), -1)
    return jnp.einsum("bngqk,bknh->bqngh", shares, value).reshape(batch, length, heads * width)


def token_of(
    sizes: Sizes, params: Params, cache: Cache, ids: Array, start: Array | int, pad: Array
) -> tuple[Array, Cache]:
    """The likeliest token after `ids`, (1, 1), and the cache, which has them from place `start` on.

    `pad` places at the cache's beginning are of no token.
    """
    batch, length = ids.shape
    places = start + jnp.arange(length)
    room = jnp.arange(cache[0][0].shape[1])
    seen = (room <= places[:, None]) & (room >= pad)
    positions = jnp.maximum(places - pad, 0)
    x, new = params["tokens"][ids], []
    for p, old in zip(params["layers"], cache, strict=True):
        y = norm(sizes, x, p["before_attention"])
        query, key, value = (
            (y @ p[name]).reshape(batch, length, heads, -1)
            for name, heads in (
                ("query", sizes.heads),
                ("key", sizes.kv_heads),
                ("value", sizes.kv_heads),
            )
        )
        query, key = (turned(sizes, heads, positions) for heads in (query, key))
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(cached, fresh, start, 1)
            for cached, fresh in zip(old, (key, value), strict=True)
        )
        new.append((keys, values))
        x = x + attention(query, keys, values, seen) @ p["output"]
        y = norm(sizes, x, p["before_feeding"])
        x = x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
    logits = norm(sizes, x[:, -1], params["norm"]) @ params["head"]
    return logits.argmax(-1, keepdims=True), new


class JaxGenerator:
    """One generation after another; tokens stay on the device until they are read."""

    def __init__(self, sizes: Sizes, weights: Mapping[str, torch.Tensor], room: int) -> None:
        self.params = params_from_torch(sizes, weights)
        self.cache = empty_cache(sizes, room)
        self.token, self.place, self.pad = jnp.zeros((1, 1)), jnp.zeros(()), jnp.zeros(())
        self.counts: Counter[str] = Counter()

        @partial(jax.jit, donate_argnums=1)
        def prefill(params: Params, cache: Cache, ids: Array, pad: Array) -> tuple[Any, ...]:
            self.counts["traced"] += 1
            token, cache = token_of(sizes, params, cache, ids, 0, pad)
            return token, cache, jnp.asarray(ids.shape[1])

        @partial(jax.jit, donate_argnums=(1, 3))
        def decode(
            params: Params, cache: Cache, token: Array, place: Array, pad: Array
        ) -> tuple[Any, ...]:
            self.counts["traced"] += 1
            token, cache = token_of(sizes, params, cache, token, place, pad)
            return token, cache, place + 1

        self.prefill, self.decode = prefill, decode

    def first(self, prompt: torch.Tensor) -> Array:
        """The token after a prompt, (1, 1), maybe still being computed."""
        ids, pad = padded(prompt)
        self.pad = jnp.asarray(pad)
        self.token, self.cache, self.place = self.prefill(
            self.params, self.cache, jnp.asarray(ids.int().numpy()), self.pad
        )
        self.counts["run"] += 1
        return self.token

    def next(self) -> Array:
        """The token after the last one, (1, 1), maybe still being computed."""
        self.token, self.cache, self.place = self.decode(
            self.params, self.cache, self.token, self.place, self.pad
        )
        self.counts["run"] += 1
        return self.token

    def read(self, tokens: list[Array]) -> list[int]:
        """The tokens on the host, when they are computed."""
        return [int(token[0, 0]) for token in jax.device_get(tokens)]

    def programs_run(self) -> int:
        """Calls of the two functions so far."""
        return self.counts["run"]

    def programs_compiled(self) -> int:
        """How often one of them was traced."""
        return self.counts["traced"]
