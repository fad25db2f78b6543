"""A call with padded tensors as rules see it, whoever knows the true sizes.

Two do: `recorded.py`, where a size is a count that was read (one padded dim), and the buckets of
`torch.compile`, where sizes are symbols (any dims).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_pjrt import operators
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.padding.dims import Dim, Factor, Unsuited, has_padding, one_factor
from torch_pjrt.tensor.padding.rules import Padding
from torch_pjrt.tensor.recording import record


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A tensor of the padded size, and of what factors its dims are made.

    >>> x = Sized(torch.zeros(4, 3), (("n",), (3,)))  # four rows, of which n are true
    >>> x.is_padded, x.ndim
    (True, 2)
    """

    tensor: torch.Tensor
    dims: tuple[Dim, ...]

    @property
    def is_padded(self) -> bool:
        return any(map(has_padding, self.dims))

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        return len(self.dims)


class PaddedCall(ABC):
    """A call of a functional overload, whose arguments `call[name]` has: tensors as `Sized`.

    op     the overload.
    given  the arguments as they came, by name, those left out with their defaults.

        >>> sorted(PaddedCall.__abstractmethods__)[:4]  # what who makes calls fills in
        ['__getitem__', 'capacity', 'count', 'do']
    """

    op: Any
    given: dict[str, Any]

    @abstractmethod
    def __getitem__(self, name: str) -> Any: ...

    @abstractmethod
    def count(self, factor: Factor) -> tuple[torch.Tensor, int]:
        """A size that varies: an int64 of the device without dims, times a number."""

    @abstractmethod
    def capacity(self, dim: Dim) -> int:
        """How many elements there is room for along a dim."""

    @abstractmethod
    def do(self, /, **changed: Any) -> Any:
        """What the operator makes of the arguments, some of them changed: ordinary tensors."""

    @abstractmethod
    def result(self, tensor: torch.Tensor, dims: Sequence[Dim]) -> Any:
        """An ordinary tensor as a result that has these dims."""

    @abstractmethod
    def flow(self) -> Callable[[Any], Any]:
        """What makes results of ordinary tensors: a dim is padded as that of the arguments is from
        which it comes. Raises `Unsuited` where that is not clear."""

    @abstractmethod
    def resized(self, d: int, capacity: int, size: torch.Tensor | int, parts: list[Dim]) -> Dim:
        """The dim `d` of the one result, of a `size` that is that of these parts together."""

    @abstractmethod
    def made_of(self, value: Any) -> Any:
        """The one result, all elements of which are this number."""

    def is_at_most(self, part: Dim, whole: Dim) -> bool:
        """Whether the one has no more true elements than the other; who traced the call knows it."""
        return True

    def record(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """The results of another operator on ordinary tensors."""
        return record.call(op, args, kwargs)

    def dim(self, name: str = "dim", of: str = "self") -> int:
        """An argument that names a dim, counted from the start."""
        return self.given[name] % max(self[of].ndim, 1)

    def padded(self) -> dict[str, list[int]]:
        """Along which of its dims each argument is padded; a list as all of its tensors are."""
        found = {
            name: sorted({d for x in tensors for d, dim in enumerate(x.dims) if has_padding(dim)})
            for name in self.given
            if (tensors := [x for x in leaves(self[name]) if isinstance(x, Sized)])
        }
        return {name: dims for name, dims in found.items() if dims}

    def by_rule(self, rule: Padding) -> Any:
        """The results of a call whose operator has this row in the table. Raises `Unsuited`."""
        padded = self.padded()
        if not rule.suits(self.given, padded):
            raise Unsuited("it works along a size that varies")
        if rule.ordered:
            for name, dims in padded.items():
                for d in rule.meets(self.given, name):
                    if d in dims:
                        one_factor(self[name].dims[d])
        flowed = self.flow()
        changed = {name: self.plain(self[name]) for name in rule.sizes}
        for name, (value, dims) in rule.filled(self.given, padded).items():
            changed[name] = self.filled(self[name], dims, value)
        return flowed(self.do(**changed))

    def plain(self, x: Any) -> Any:
        """An argument as operators take it: of the padded size."""
        if isinstance(x, (list, tuple)):
            return [self.plain(i) for i in x]
        return x.tensor if isinstance(x, Sized) else x

    def filled(self, x: Sized, dims: Iterable[int], value: float) -> Sized:
        """`x` with `value` in the padding of these dims."""
        tensor = x.tensor
        for d in dims:
            dim, shape = x.dims[d], tensor.shape
            if len(dim) > 1 and has_padding(dim):
                split = [self.capacity((factor,)) for factor in dim]
                tensor = tensor.reshape(*shape[:d], *split, *shape[d + 1 :])
            for position, factor in enumerate(dim, d):
                if not isinstance(factor, int):
                    count, scale = self.count(factor)
                    tensor = self.record(operators.fill_rest, tensor, count, position, scale, value)
            tensor = tensor.reshape(shape) if tensor.shape != shape else tensor
        return x if tensor is x.tensor else Sized(tensor, x.dims)

    def all_filled(self, x: Sized, value: float) -> Sized:
        """`x` with `value` in all of its padding."""
        return self.filled(x, range(x.ndim), value)

    def size(self, *dims: Dim) -> torch.Tensor | int:
        """How many true elements there are in these dims together."""
        factors = [f for dim in dims for f in dim]
        counts = [self.count(f) for f in factors if not isinstance(f, int)]
        scale = math.prod(f for f in factors if isinstance(f, int))
        scale *= math.prod(scale for _, scale in counts)
        if not counts:
            return scale
        number = counts[0][0]
        for count, _ in counts[1:]:
            number = self.record(aten.mul.Tensor, number, count)
        return number if scale == 1 else self.record(aten.mul.Scalar, number, scale)

    def cast(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return x if x.dtype == dtype else self.record(aten._to_copy.default, x, dtype=dtype)


def leaves(x: Any) -> list[Any]:
    """What is in lists within lists.

    >>> leaves([1, [2, (3, 4)]])
    [1, 2, 3, 4]
    """
    if isinstance(x, (list, tuple)):
        return [leaf for part in x for leaf in leaves(part)]
    return [x]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which PyTorch sums: a float of 16 bits has too few digits for sizes.

    >>> wide(torch.bfloat16), wide(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def only(call: PaddedCall, *names: str) -> None:
    """Raises `Unsuited` if a tensor beside these is padded.

    >>> class Call:
    ...     def padded(self):
    ...         return ["weight"]
    >>> only(Call(), "input")
    Traceback (most recent call last):
    torch_pjrt.tensor.padding.dims.Unsuited: `weight` depends on a size that varies
    """
    for name in call.padded():
        if name not in names:
            raise Unsuited(f"`{name}` depends on a size that varies")
