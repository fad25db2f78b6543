"""Cases that run on the device and by gloo on CPU tensors, in the same processes, and must give the same.

Data are small whole numbers, so that every order of adding gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Run = Callable[[str], Any]


class Cases:
    """Runs cases and keeps what they did: how many ran against gloo, against a formula, and what failed."""

    def __init__(self) -> None:
        self.against_gloo = self.against_formula = self.refused = 0
        self.failed: list[str] = []

    def same(self, name: str, run: Run) -> None:
        """The case gives on the device what it gives with gloo, or gloo refuses it."""
        try:
            expected = run("cpu")
        except (RuntimeError, ValueError, NotImplementedError):
            self.refused += 1
            return
        self.against_gloo += 1
        self._compare(name, lambda: run("pjrt"), expected)

    def gives(self, name: str, run: Run, expected: Any) -> None:
        """The case gives on the device what a formula says."""
        self.against_formula += 1
        self._compare(name, lambda: run("pjrt"), expected)

    def _compare(self, name: str, run: Callable[[], Any], expected: Any) -> None:
        try:
            seen = run()
        except Exception as error:
            self.failed.append(
                f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            )
            return
        if not equal(seen, expected):
            self.failed.append(f"{name}: {shown(seen)} is not {shown(expected)}")


def equal(seen: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        seen = seen.cpu()
        if seen.dtype != expected.dtype or seen.shape != expected.shape:
            return False
        if seen.dtype.is_floating_point and seen.element_size() == 1:
            seen, expected = seen.float(), expected.float()
        return torch.equal(seen, expected)
    if isinstance(expected, (list, tuple)):
        return len(seen) == len(expected) and all(map(equal, seen, expected))
    return seen == expected


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.cpu().tolist() if value.numel() < 20 else list(value.shape)}"
    return str([shown(v) for v in value]) if isinstance(value, (list, tuple)) else str(value)


def data(shape: tuple[int, ...], dtype: torch.dtype, rank: int, to: int = 0) -> torch.Tensor:
    """Whole numbers from 0 to 4 that depend on the ranks and the place, on the CPU."""
    n = torch.Size(shape).numel()
    numbers = (torch.arange(n) * 3 + rank * 2 + to * 5 + 1) % 5
    if dtype == torch.bool:
        return (numbers % 2 == 0).reshape(shape)
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers - 2).double()).to(dtype).reshape(shape)
    return numbers.to(dtype).reshape(shape)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class World:
    """A group and the place in it of this process."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def root(self, i: int) -> int:
        return dist.get_global_rank(self.group, i) if self.group is not None else i
