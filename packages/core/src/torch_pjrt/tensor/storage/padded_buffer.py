"""Buffers whose arrays have capacity for more elements than there are.

For PyTorch a tensor on such a buffer has its true size. Sizes differ from capacities along any dims:
along one whose size is data-dependent (`nonzero`, `x[mask]`), or along those that the buckets of
`torch.compile` pad. What does not know of the padding gets the true elements: cut out on the host
where they are read, by a program for these sizes else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of, storage_order
from torch_pjrt.tensor.storage.buffer import (
    Buffer,
    buffer_of,
    buffers,
    create_empty_tensor,
    wrap_buffer,
)
from torch_pjrt.tensor.storage.view import read_value

if TYPE_CHECKING:
    from torch_pjrt.tensor.storage.counts import Count

# Of how many parts a dim is made, from the slowest to the fastest: (capacity, size).
Parts = tuple[tuple[int, int], ...]
Names = tuple[tuple[Any, ...], ...]

_GONE: Any = None
_value: Any = Buffer.__dict__["value"]
# What `held` says beside the value.
_HELD = ("spec", "viewed", "blank", "padded", "padded_spec", "parts", "names", "dim", "count")


class PaddedBuffer(Buffer):
    """A buffer that is padded while `padded` is there; what sets its `value` makes it ordinary.

    padded       the array, with anything past the true elements.
    padded_spec  how it lies in memory.
    parts        of each dim; of several where dims were merged, each of which has a capacity of its
                 own: the true elements are not the first then.
    names        of each part, what its maker calls it; None where nobody asks.
    count        the data-dependent size along `dim`, the only dim that is padded then: programs read
                 it on the device, and so do not depend on it. None where the host decides all sizes.

        >>> x = torch.tensor([1.0, 0.0, 2.0], device="pjrt").nonzero()  # two of at most three rows
        >>> buffer = padded_buffer_of(x)
        >>> buffer.spec.shape, buffer.padded_spec.shape, buffer.parts
        ((2, 1), (3, 1), (((3, 2),), ((1, 1),)))
    """

    __slots__ = ("count", "dim", "names", "padded", "padded_spec", "parts")

    def __init__(
        self,
        padded: Value,
        padded_spec: TensorSpec,
        parts: tuple[Parts, ...],
        *,
        names: Names | None = None,
        dim: int = -1,
        count: Count | None = None,
    ) -> None:
        _value.__set__(self, None)
        self.padded = padded
        self.padded_spec = padded_spec
        self.parts = parts
        self.names = names
        self.dim = dim
        self.count = count
        self.spec = resized(padded_spec, [math.prod(n for _, n in dim) for dim in parts])
        self.viewed = True
        self.blank = False
        self.address = 0
        if buffers.is_noting:
            buffers.note(self)

    @property
    def value(self) -> Value | None:  # type: ignore[override]
        padded = self.padded  # once: another thread may read, too, and end the padding
        if padded is _GONE:
            return _value.__get__(self)
        cut = self._cut(padded)
        if self.count is None:  # else it stays padded: the cut is of this count alone
            self.value = cut
        return cut

    @value.setter
    def value(self, value: Value | None) -> None:
        self.padded = self.count = _GONE
        _value.__set__(self, value)

    def held(self) -> tuple[Any, ...]:
        return _value.__get__(self), *(getattr(self, name) for name in _HELD)

    def hold_again(self, held: tuple[Any, ...]) -> None:
        _value.__set__(self, held[0])
        for name, what in zip(_HELD, held[1:], strict=True):
            setattr(self, name, what)

    def become(self, other: PaddedBuffer) -> None:
        """Have the content of another one, which looks as this one does."""
        self.hold_again(other.held())

    def _cut(self, value: Value) -> Value:
        """The true elements of the padded value."""
        dtype, shape = self.spec.dtype, self.spec.shape
        split = contiguous_spec(tuple(c for dim in self.parts for c, _ in dim), dtype)
        sizes = tuple(n for dim in self.parts for _, n in dim)
        whole = contiguous_spec(value.spec.shape, dtype)
        if whole is not split:
            value = read_value(value, whole, split, 0)
        cut = read_value(value, split, spec_of(sizes, dtype, split.strides), 0)
        if sizes == shape:
            return cut
        return read_value(cut, contiguous_spec(sizes, dtype), contiguous_spec(shape, dtype), 0)

    def cut_on_host(self, whole: torch.Tensor) -> torch.Tensor:
        """The true elements of what `padded` holds, which the host has."""
        split = whole.reshape([c for dim in self.parts for c, _ in dim])
        for position, (capacity, size) in enumerate(part for dim in self.parts for part in dim):
            if size != capacity:
                split = split.narrow(position, 0, size)
        return split.reshape(self.spec.shape)


def is_padded(buffer: Buffer) -> TypeGuard[PaddedBuffer]:
    """Whether the buffer has capacity for more elements than there are.

    >>> x = torch.tensor([1.0, 0.0, 2.0], device="pjrt").nonzero()  # two of at most three rows
    >>> (
    ...     is_padded(buffer_of(x)),
    ...     is_padded(buffer_of(x + 0.5)),
    ...     is_padded(buffer_of(torch.ones(2).to("pjrt"))),
    ... )
    (True, True, False)
    """
    return buffer.padded is not None


def padded_buffer_of(tensor: torch.Tensor) -> PaddedBuffer | None:
    """The buffer of a tensor that shows all of a padded buffer; None for others.

    >>> x = torch.tensor([1.0, 0.0, 2.0], device="pjrt").nonzero()  # two of at most three rows
    >>> padded_buffer_of(x).count, padded_buffer_of(x[:1])
    (Count(2 of 3), None)
    """
    buffer = buffer_of(tensor)
    if not is_padded(buffer):
        return None
    spec = buffer.spec
    if tensor.dtype != spec.dtype or tensor.is_conj() or tensor.is_neg() or tensor.storage_offset():
        return None
    looks_so = tensor.shape == spec.shape and tensor.stride() == spec.strides
    return buffer if looks_so else None


def padded_tensor(buffer: PaddedBuffer) -> torch.Tensor:
    """A tensor of the true size that shows all of the buffer.

    >>> x = torch.tensor([1.0, 0.0, 2.0], device="pjrt").nonzero()  # two of at most three rows
    >>> padded_tensor(padded_buffer_of(x)).tolist()
    [[0], [2]]
    """
    if not buffer.spec.plain:
        return wrap_buffer(buffer)
    tensor = create_empty_tensor(buffer.spec.shape, buffer.spec.dtype)
    tensor.untyped_storage().buffer = buffer
    return tensor


def resized(spec: TensorSpec, shape: Sequence[int]) -> TensorSpec:
    """The dense spec of another shape whose dims lie in memory in the order of those of a dense one.

    >>> resized(spec_of((2, 3), torch.float32, (1, 2)), (4, 5)).strides
    (1, 4)
    """
    strides, step = [1] * len(shape), 1
    for d in reversed(storage_order(spec)):
        strides[d] = step
        step *= max(shape[d], 1)
    return spec_of(tuple(shape), spec.dtype, tuple(strides))
