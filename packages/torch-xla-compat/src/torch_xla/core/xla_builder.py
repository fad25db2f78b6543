"""`torch_xla.core.xla_builder` (`xb`): of its names, JAX functions on tensors. Programs are not built by
hand here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch_pjrt
from torch_xla.absent import absent

_BY_HAND = "write the computation as a JAX function and call it by `torch_pjrt.jax_function`"

__getattr__ = absent(
    __name__,
    dict.fromkeys(
        (
            "Op",
            "Shape",
            "Type",
            "create_computation",
            "computation_from_module_proto",
            "XlaCallable",
            "get_computation_hlo",
            "mkparam",
            "mkleaf",
            "create_placeholder_tensor",
            "create_builder",
            "mkshape",
            "mkop",
            "tensor_shape",
            "xla_computation_as_func",
        ),
        _BY_HAND,
    ),
)


def call_jax(
    jax_func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    override_hash: Any = None,
    *,
    override_name: str | None = None,
) -> Any:
    """`jax_func(*args, **kwargs)`, a function of JAX arrays, as an operator of the program, with its
    gradient. Programs are told apart by what the function computes: names and hashes are not used."""
    return torch_pjrt.jax_function(jax_func)(*args, **(kwargs or {}))


class JaxCallable:
    """A JAX function to be called with tensors: `torch_pjrt.jax_function`."""

    def __init__(self, jax_func: Callable[..., Any]) -> None:
        self._function = torch_pjrt.jax_function(jax_func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)
