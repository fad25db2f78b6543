"""What a device can do: programs for it do nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# What every device must take: of these the core makes reads, writes, casts and copies.
_LEAST = """
    add and broadcast_in_dim compare concatenate constant convert dynamic_slice dynamic_update_slice iota
    maximum minimum multiply negate or pad reduce reshape select slice subtract transpose
    """
LEAST = frozenset(_LEAST.split())


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the programs for a device may contain, and what can be asked of it. The defaults are a full XLA's.

    has_64_bits   float64, int64, uint64 and complex128. Without them such tensors keep their dtype for
                  PyTorch and are held and computed in half the bits; a notice says so once. An integer that
                  does not fit is an `OverflowError` when it is uploaded, a float becomes infinite.
    lacks_dtypes  dtypes that no tensor on the device can have, and no value in a program either.
    operations    the operations of StableHLO that its compiler takes (`dot_general`, `sort`), beside those
                  of `LEAST`; None: all. An operator whose rule needs another one is decomposed by
                  PyTorch's decomposition, if that needs none, or runs on the host. Operations of another
                  dialect have its name (`chlo.erf`); custom calls are `custom_call`.
    donation      a program may take the memory of an input for a result. None: as JAX knows the platform;
                  it does not pass donations on for a platform that it does not know.
    memory_statistics   whether `memory_stats()` of a chip may be asked.
    memory_bytes  of a chip, where it keeps no statistics; None: that of the host.

        >>> Capabilities(has_64_bits=False, lacks_dtypes=frozenset({torch.float16})).limited
        True
    """

    has_64_bits: bool = True
    lacks_dtypes: frozenset[torch.dtype] = frozenset()
    operations: frozenset[str] | None = None
    donation: bool | None = None
    memory_statistics: bool = True
    memory_bytes: int | None = None

    @property
    def limited(self) -> bool:
        """Whether not every rule's program can run."""
        return self.operations is not None or bool(self.lacks_dtypes)
