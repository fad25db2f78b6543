"""What became of sizes that vary, for each compiled graph: what `torch_pjrt_dynamo.shapes()` tells."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Shapes:
    """What became of the sizes of one graph that vary.

    name      of the compiled graph.
    symbols   the sizes, by PyTorch's names.
    buckets   the sizes to which calls were padded, in that order: there is one program, or a few, for each.
    exact     the sizes of calls for which there was no bucket: a program for each.
    reason    why there is a program for each size of all calls; None where there is not.
    """

    name: str
    symbols: list[str]
    buckets: set[tuple[int, ...]] = field(default_factory=set)
    exact: set[tuple[int, ...]] = field(default_factory=set)
    reason: str | None = None

    def __str__(self) -> str:
        names = ", ".join(self.symbols)
        if self.reason is not None:
            return f"{self.name}: one program for each size ({names}), because {self.reason}"
        told = ", ".join(" x ".join(map(str, sizes)) for sizes in sorted(self.buckets))
        lines = f"{self.name}: {names} padded to {told or 'nothing yet'}"
        if self.exact:
            lines += f"; {len(self.exact)} sizes that have no bucket"
        return lines


known: deque[Shapes] = deque(maxlen=100)


def shapes() -> list[Shapes]:
    """Of the last hundred compiled graphs with sizes that vary; print them."""
    return list(known)
