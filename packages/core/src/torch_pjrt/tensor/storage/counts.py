"""How many elements a tensor has, where only the values decide it: `nonzero`, `x[mask]`, `unique`.

PyTorch asks for the number, so it is read once. The number is not a constant of the programs that follow:
there it is a value on the device, and the arrays have room for more elements than there are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch

from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.session import session

if TYPE_CHECKING:
    from torch_pjrt.tensor.storage.buffer import Buffer
    from torch_pjrt.tensor.storage.padded_buffer import PaddedBuffer

# What a tensor with a count looks like to a kernel: like nothing that has a signature.
DATA_DEPENDENT = TensorSpec((), torch.uint8, ())

# While True, arrays have no padding: what a check of all values would find there would be nobody's.
exact = False

_REMEMBERED = 16  # about as many as one step of a program meets


class Count:
    """A number of elements along a dim.

    n         the number, as the host knows it: `scale` times what `value`, an int64 on the device, holds.
    capacity  how many elements arrays have along that dim.

    Counts of one number are equal: along dims of them are as many elements.

        >>> Count(2, value_of(torch.tensor(2, device="pjrt")), 4)
        Count(2 of 4)
    """

    __slots__ = ("capacity", "n", "scale", "value")

    def __init__(self, n: int, value: Value, capacity: int, scale: int = 1) -> None:
        self.n = n
        self.value = value
        self.capacity = capacity
        self.scale = scale

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Count) and other.n == self.n

    def __hash__(self) -> int:
        return hash(self.n)

    def __repr__(self) -> str:
        return f"Count({self.n} of {self.capacity})"

    def times(self, factor: int) -> Count:
        """The count of a dim into which `factor` elements for each of these were merged."""
        if factor == 1:
            return self
        return Count(self.n * factor, self.value, self.capacity * factor, self.scale * factor)


class Recent(threading.local):
    """The counts that this thread has met last, by their number.

    Backward passes make gradients from sizes alone (`grad.expand(sizes)`): there a size that was lately
    counted is taken to be that count. Where it is another size after all, the results are the same.

        >>> x = torch.tensor([1.0, 0.0, 2.0], device="pjrt").nonzero()  # two of at most three rows
        >>> recent.has_one_of((2, 3), (0, 1))
        True
    """

    def __init__(self) -> None:
        self.by_size: OrderedDict[int, Count] = OrderedDict()
        self._all = self.by_size

    def add(self, count: Count) -> None:
        if count.n > 1:
            self._all[count.n] = count
            self._all.move_to_end(count.n)
            if len(self._all) > _REMEMBERED:
                self._all.popitem(last=False)

    def has_one_of(self, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether an expanded dim (one of `shape` whose number in `strides` is 0) has such a size."""
        by_size = self.by_size
        return any(
            stride == 0 and size in by_size for size, stride in zip(shape, strides, strict=True)
        )

    def forget(self) -> None:
        self.by_size.clear()

    def hide(self) -> OrderedDict[int, Count]:
        """Have none; returns what is to be given to `restore`."""
        old, self.by_size = self.by_size, OrderedDict()
        return old

    def restore(self, old: OrderedDict[int, Count]) -> None:
        """Have those back that were there before; `old` is of `hide`."""
        self.by_size = old


recent = session.own("sizes that were lately counted", Recent())


def is_data_dependent(buffer: Buffer) -> TypeGuard[PaddedBuffer]:
    """Whether the buffer is padded along a dim whose size is data-dependent."""
    return buffer.count is not None
