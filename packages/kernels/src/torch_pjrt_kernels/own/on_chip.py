"""Tracing JAX's and users' kernels for the device at work, or for one that is not here.

On a CPU a Pallas kernel is interpreted: it becomes ordinary operations of the program. Elsewhere it is
compiled for the chip of the client, which Pallas asks for the sizes of its memories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, get_abstract_mesh, use_abstract_mesh

from torch_pjrt.plugin import client, rules


@contextmanager
def interpreted() -> Iterator[None]:
    """Within the block kernels are traced as ordinary operations."""
    from jax.experimental.pallas import tpu

    without_callbacks: Any = True
    with tpu.force_tpu_interpret_mode(without_callbacks):
        yield


@contextmanager
def on_the_chip() -> Iterator[None]:
    """Within the block kernels are traced for the chip of the device at work."""
    chip = client().chip
    if chip.platform == "cpu":
        with interpreted():
            yield
    elif get_abstract_mesh().empty:
        with use_abstract_mesh(AbstractMesh((), (), abstract_device=_described(chip))):
            yield
    else:  # within a `shard_map`
        yield


def _described(chip: Any) -> AbstractDevice:
    said = {
        "device_kind": chip.device_kind,
        "num_cores": getattr(chip, "num_cores", 1) or 1,
        "platform": chip.platform,
    }
    known = {field.name for field in fields(AbstractDevice)}  # JAX 0.10.0 has no platform
    return AbstractDevice(**{name: value for name, value in said.items() if name in known})


def traced_on_the_chip(function: Callable[..., Any], *args: Any) -> Any:
    """What `function` gives, traced with JAX's usual 32 bits for the chip of the device at work."""
    with on_the_chip():
        return with_32_bits(function, *args)


def with_32_bits(function: Callable[..., Any], *args: Any) -> Any:
    """What `function` gives, with JAX's usual 32 bits, and products as kernels ask for them."""
    with jax.default_matmul_precision("default"):
        return rules.without_x64(function)(*args)


def shapes_of(function: Callable[..., Any], *args: Any) -> Any:
    """The shapes and dtypes of what it gives, without computing anything. `args` have `ShapeDtypeStruct`s."""
    with jax.enable_x64(False), on_the_chip():
        return jax.eval_shape(function, *args)
