"""Arrays whose program failed behind the host's back: they carry an error in place of a content.

Shape, dtype and size can be asked of them, and they can be dropped. But on the CPU whoever asks one for its
address, or for its content before having waited for it, ends the process.
"""

from __future__ import annotations

from typing import Any

import jax


def is_there(array: Any) -> bool:
    """Whether the array's content has been computed. Waits for nothing; False for what failed."""
    try:
        return array.is_ready() and is_there_at_last(array)
    except RuntimeError:  # deleted, just now
        return False


def is_there_at_last(array: Any) -> bool:
    """Whether the array has a content. Waits for its program to end."""
    try:
        array.block_until_ready()
    except RuntimeError:  # JAX's errors are some
        return False
    return True


def has_failed(array: Any) -> bool:
    """Whether the array carries an error. Waits for nothing: what is being computed may yet fail."""
    try:
        if array.is_ready():
            array.block_until_ready()
    except jax.errors.JaxRuntimeError:
        return True
    except RuntimeError:  # deleted, just now
        return False
    return False
