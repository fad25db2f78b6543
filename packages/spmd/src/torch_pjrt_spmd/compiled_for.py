"""What this thread compiles for: this process's chips, or hardware that is not here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch_pjrt_spmd.mesh import Mesh

if TYPE_CHECKING:
    import jax

    NamedSharding = jax.sharding.NamedSharding


class _Ahead(threading.local):
    """On this thread: the target that is compiled for, if it is not this process's chips."""

    target: str | None = None


_ahead = _Ahead()


@contextmanager
def compiling_for(target: str | None) -> Iterator[None]:
    """Within the block, on this thread, all that is asked for is of the target's chips."""
    before, _ahead.target = _ahead.target, target
    try:
        yield
    finally:
        _ahead.target = before


def target() -> str | None:
    """What this thread compiles for ahead of time; None: for this process's chips."""
    return _ahead.target


def there(how: NamedSharding | None) -> NamedSharding | None:
    """How what lies like this here lies on the chips that are compiled for. None stays None."""
    if how is None or _ahead.target is None:
        return how
    if len(how.device_set) == 1:
        return None
    import jax

    assert isinstance(how.mesh, jax.sharding.Mesh)
    mesh = Mesh(how.mesh.devices.shape, how.mesh.axis_names, target=_ahead.target)
    return jax.sharding.NamedSharding(mesh.jax_mesh, how.spec, memory_kind=how.memory_kind)
