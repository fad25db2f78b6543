"""Arrays of the host put on the device, and counted."""

from __future__ import annotations

import jax
import numpy as np

from torch_pjrt.client import memory
from torch_pjrt.client.client import client
from torch_pjrt.observe.counters import counters


def put(host: np.ndarray, sharding: jax.sharding.Sharding | None = None) -> jax.Array:
    """An array of the device, counted as an upload. Nobody may write to `host` from then on.

    >>> put(np.zeros(3, "float32")).shape
    (3,)
    """
    with counters.timed("upload_s"):
        array = client().put(host, sharding)
    counters.uploads += 1
    counters.uploaded_bytes += host.nbytes
    memory.uploaded(host.nbytes)
    return array
