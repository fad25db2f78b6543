"""Compiled programs as bytes, and back, by JAX."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import serialize_executable

from torch_pjrt.client.client import Client
from torch_pjrt.compile.foreign_calls import set_up, unknown
from torch_pjrt.graph.boundary import Boundary


def to_bytes(compiled: Any, boundary: Boundary, calls: Sequence[str]) -> bytes | None:
    """The compiled program with its boundary and the targets of its custom calls.

    None if the device's PJRT plugin cannot write programs out.
    """
    try:
        return pickle.dumps((tuple(calls), boundary, *serialize_executable.serialize(compiled)))
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError):
        return None


def from_bytes(
    content: bytes,
    client: Client,
    chips: Sequence[jax.Device] = (),  # pyright: ignore[reportInvalidTypeForm]
) -> tuple[Any, Boundary] | None:
    """What `to_bytes` wrote, the program loaded on these chips, or the client's; None if it cannot be loaded.

    Before that the foreign functions that it calls are set up; none is loaded that has others.
    Loading runs what is in `content`: it must come from a place that only this user can write to.
    """
    try:
        calls, boundary, payload, in_tree, out_tree = pickle.loads(content)
        if unknown(calls, client):
            return None
        set_up(calls, client)
        compiled = serialize_executable.deserialize_and_load(
            payload,
            in_tree,
            out_tree,
            backend=client.chip.client,
            execution_devices=list(chips) or [client.chip],
        )
        return compiled, boundary
    except Exception:  # whatever it is, compiling will say it better
        return None
