"""Batches of as many samples as a budget allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Budget:
    """A batch size that varies: as many samples as cost at most `most` together.

    cost         of the sample with an index: a function, or anything that has it at that index, an array of
                 lengths, say.
    most         what the samples of a batch, of all processes together, may cost.
    padded       samples are padded to the longest: a batch costs its largest cost times its samples.
    multiple_of  batches have a multiple of so many samples, which the processes must divide; the chips of a
                 mesh, say.

        Budget(lengths, most=65_536, padded=True, multiple_of=8)
    """

    cost: Callable[[int], float] | Sequence[float] | Any
    most: float
    padded: bool = False
    multiple_of: int = 1

    def __post_init__(self) -> None:
        if self.multiple_of < 1:
            raise ValueError(f"multiple_of must be at least 1, saw {self.multiple_of}")

    def cost_of(self, index: int) -> float:
        """What a sample costs."""
        cost: Any = self.cost
        return float(cost(index)) if callable(cost) else float(cost[index])  # type: ignore[arg-type]

    def fitting(self, indices: Iterable[int]) -> tuple[int, bool]:
        """How many of the first ones fit, and whether the budget ended them, rather than the data."""
        count, total, largest = 0, 0.0, 0.0
        for index in indices:
            cost = self.cost_of(index)
            total, largest = total + cost, max(largest, cost)
            if (largest * (count + 1) if self.padded else total) > self.most:
                return count // self.multiple_of * self.multiple_of, True
            count += 1
        whole = count // self.multiple_of * self.multiple_of
        return whole, False
