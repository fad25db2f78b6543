"""NumPy's random numbers: JAX draws some when it is imported, which is when the device is first used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch_pjrt.device.imports import during_import


def install() -> None:
    """Keep them while JAX is imported: numbers of a seed must not depend on the device."""
    during_import("jax", kept)


@contextmanager
def kept() -> Iterator[None]:
    """NumPy's own generator is after the block where it was before.

    >>> import numpy as np
    >>> with kept():
    ...     inside = np.random.rand()
    >>> np.random.rand() == inside
    True
    """
    if "numpy.random" not in sys.modules:  # nobody can have seeded it
        yield
        return
    import numpy as np

    numbers = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        np.random.set_state(numbers)
