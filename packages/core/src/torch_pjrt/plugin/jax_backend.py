"""The one file for JAX's internals: PJRT clients of our own, beside those that JAX manages.

A client that is made here is unknown to JAX's list of backends: `jax.devices()`, the default
backend and `JAX_PLATFORMS` stay as the user has them, and it makes no difference whether JAX has
been used before. Arrays are placed on the chips of such a client explicitly, and programs follow
their arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax


def separate_cpu_chips() -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """The chips of a new XLA CPU client, which shares nothing with `jax.devices("cpu")`.

    For `Device.start` of a device that stands in for hardware, in tests above all. Each call makes
    another client; a chip keeps its client alive. The chips' platform is "cpu".
    """
    from jax._src import xla_bridge

    return xla_bridge.make_cpu_client().local_devices()
