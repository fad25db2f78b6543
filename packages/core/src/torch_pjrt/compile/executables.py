"""Compiled programs as bytes, and back, by JAX."""

from __future__ import annotations

import pickle
from typing import Any

import jax
from jax.experimental import serialize_executable

from torch_pjrt.run.client import Client


def to_bytes(compiled: Any) -> bytes | None:
    """The compiled program; None if the device's PJRT plugin cannot write programs out."""
    try:
        return pickle.dumps(serialize_executable.serialize(compiled))
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError):
        return None


def from_bytes(content: bytes, client: Client) -> Any:
    """The program that `to_bytes` wrote, loaded on the client's chip; None if it cannot be loaded.

    Loading runs what is in `content`: it must come from a place that only this user can write to.
    """
    try:
        payload, in_tree, out_tree = pickle.loads(content)
        return serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, backend=client.chip.client, execution_devices=[client.chip]
        )
    except Exception:  # whatever it is, compiling will say it better
        return None
