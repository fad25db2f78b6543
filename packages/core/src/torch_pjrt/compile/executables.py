"""Compiled programs as bytes, and back, by JAX."""

from __future__ import annotations

import pickle
from typing import Any

import jax
from jax.experimental import serialize_executable

from torch_pjrt.compile.boundary import Boundary
from torch_pjrt.run.client import Client


def to_bytes(compiled: Any, boundary: Boundary) -> bytes | None:
    """The compiled program with its boundary; None if the device's PJRT plugin cannot write programs out."""
    try:
        return pickle.dumps((*serialize_executable.serialize(compiled), boundary))
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError):
        return None


def from_bytes(content: bytes, client: Client) -> tuple[Any, Boundary] | None:
    """What `to_bytes` wrote, the program loaded on the client's chip; None if it cannot be loaded.

    Loading runs what is in `content`: it must come from a place that only this user can write to.
    """
    try:
        payload, in_tree, out_tree, boundary = pickle.loads(content)
        compiled = serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, backend=client.chip.client, execution_devices=[client.chip]
        )
        return compiled, boundary
    except Exception:  # whatever it is, compiling will say it better
        return None
