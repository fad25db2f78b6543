"""The same functions of tokamax, Google's library of kernels for JAX, where it is installed: for `bench`.

They take JAX arrays on the device's chip, and are compiled by JAX, forward and backward in one program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_pjrt.plugin import client


def is_installed() -> bool:
    """Whether tokamax can be imported: what it needs besides is looked for then."""
    return find_spec("tokamax") is not None


def step(name: str, given: Sequence[torch.Tensor], n_leaves: int) -> Callable[[], Any] | None:
    """What `bench` times: forward and backward of its function `name` of CPU tensors; None if it has none."""
    function = _functions().get(name)
    if function is None:
        return None
    chip = client().chip
    arrays = [jax.device_put(x.numpy(), chip) for x in given]

    def total(*leaves: Any) -> Any:
        return function(*leaves, *arrays[n_leaves:]).sum()

    compiled = jax.jit(jax.value_and_grad(total, tuple(range(n_leaves))))

    def run() -> Any:
        return jax.block_until_ready(compiled(*arrays[:n_leaves]))

    return run


def _functions() -> dict[str, Callable[..., Any]]:
    """By the names of `bench`. Implementations are those that tokamax takes for the device."""
    tokamax: Any = import_module("tokamax")
    flags: Any = import_module("absl.flags").FLAGS
    if not flags.is_parsed():
        flags.mark_as_parsed()  # else tokamax reads this program's arguments as its own

    def flash_attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))  # its heads come behind its positions
        return jnp.swapaxes(tokamax.dot_product_attention(q, k, v, is_causal=True), 1, 2)

    def linear_cross_entropy(x: Any, weight: Any, target: Any) -> Any:
        loss = tokamax.linear_softmax_cross_entropy_loss
        return loss(x, target.astype("int32"), weight.T, reduction="mean")

    return {"flash_attention": flash_attention, "linear_cross_entropy": linear_cross_entropy}
