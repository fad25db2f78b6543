"""How long a collective takes by the bandwidth of the links, if nothing else does.

For n chips in a ring that each send B bytes in a second to the next one. A collective that gives each chip R
bytes takes, without latencies:

    all-gather, all-to-all    R (n - 1) / n / B    each chip has its own nth part already
    reduce-scatter            R (n - 1) / B        its input is n times as large as what it gives
    all-reduce                2 R (n - 1) / n / B  a reduce-scatter, then an all-gather
    collective-permute, -broadcast                 R / B

The factors are those by which NCCL's tests turn the time of a collective into the bandwidth of links:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. For an all-to-all over links between
neighbours alone it is a lower bound. Over several axes: n is the product, and B that of the slowest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

#   what XLA calls it      times R / B, for n chips
FACTORS: Mapping[str, Callable[[int], float]] = {
    "all-gather":           lambda n: (n - 1) / n,
    "all-reduce":           lambda n: 2 * (n - 1) / n,
    "all-to-all":           lambda n: (n - 1) / n,
    "collective-broadcast": lambda n: 1.0,
    "collective-permute":   lambda n: 1.0,
    "ragged-all-to-all":    lambda n: (n - 1) / n,
    "reduce-scatter":       lambda n: float(n - 1),
}  # fmt: skip


def seconds(
    kind: str,
    n_bytes: int,
    axes: Sequence[str],
    sizes: Mapping[str, int],
    bandwidth: Mapping[str, float],
) -> float | None:
    """Of one collective that gives each chip `n_bytes`; None where the bandwidth of an axis is unknown.

    sizes       how many chips lie along each axis. bandwidth: bytes that a chip sends along it in a second.
    """
    if not axes:
        return 0.0
    if any(name not in bandwidth for name in axes):
        return None
    n = prod(sizes[name] for name in axes)
    return FACTORS[kind](n) * n_bytes / min(bandwidth[name] for name in axes)
