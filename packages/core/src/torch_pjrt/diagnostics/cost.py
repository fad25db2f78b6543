"""What XLA estimates that a compiled program costs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from torch_pjrt.plugin.jax_backend import counted_by_cpu


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run. None where the device's compiler does not say.

    flops               arithmetic operations on floats.
    accessed_bytes      read and written by all of its kernels.
    argument_bytes      its inputs. output_bytes: its results. temporary_bytes: what it needs between.
    """

    flops: int | None = None
    accessed_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    temporary_bytes: int | None = None


def cost_of(compiled: Any) -> Cost:
    """The estimates for what `jax.jit(...).lower(...).compile()` returned. Never raises."""
    counts: Any = {}
    memory: Any = None
    # Plugins may implement neither, and say so with whatever error they like.
    with contextlib.suppress(Exception):
        found: Any = compiled.cost_analysis() or {}
        counts = found[0] if isinstance(found, list) else found
    with contextlib.suppress(Exception):
        memory = compiled.memory_analysis()
    if not counts:
        with contextlib.suppress(Exception):
            counts = counted_by_cpu(compiled)
    return Cost(
        _integer(counts.get("flops")),
        _integer(counts.get("bytes accessed")),
        _integer(getattr(memory, "argument_size_in_bytes", None)),
        _integer(getattr(memory, "output_size_in_bytes", None)),
        _integer(getattr(memory, "temp_size_in_bytes", None)),
    )


def _integer(number: float | None) -> int | None:
    return None if number is None or number < 0 else int(number)
