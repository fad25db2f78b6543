"""Tensors that a caller donates: the coming program may take their memory for one of its results.

before  buffer ─► value, an input of the tape     after  buffer ─► Donated: asking for its array raises
        result ─► pending value                          value, which the tape alone holds
                                                         result ─► pending value, aliased with the input
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from torch_pjrt.client.client import client
from torch_pjrt.errors import DonatedTensor
from torch_pjrt.graph.tape import Value, number_on, state
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt

if TYPE_CHECKING:
    from torch_pjrt.graph.tape import Tape


class Donated(Value):
    """What a buffer holds whose content was donated to `taker`."""

    __slots__ = ("taker",)

    def __init__(self, given: Value, taker: str) -> None:
        self.spec = given.spec
        self.number = 0
        self.tape = None
        self.origin = None
        self.taker = taker

    def __repr__(self) -> str:
        return f"Donated({self.spec}, to {self.taker})"

    @property
    def array(self) -> NoReturn:  # type: ignore[override]
        raise DonatedTensor(
            f"A tensor is used whose memory was given to {self.taker}.",
            saw=str(self.spec),
            hint="use what the call has returned; or do not name the argument in `donate`",
        )


def donate(tensors: Sequence[torch.Tensor], results: Sequence[Any], taker: str) -> None:
    """Let what is recorded take the memory of `tensors` for those of `results` that look alike.

    From now on using them, or what shares memory with them, raises `DonatedTensor`. Those that are among the
    results, or share memory with one, stay. Does nothing on a device whose programs take no memory.

        >>> x = torch.ones(3, device="pjrt")
        >>> torch_pjrt.sync()
        >>> y = x + 1
        >>> donate([x], [y], "a step of mine")
        >>> x.sum()
        Traceback (most recent call last):
        torch_pjrt.errors.DonatedTensor: ...
    """
    if not client().donates:
        return
    made = [buffer_of(x) for x in results if is_pjrt(x)]
    aliased = [b.value for b in made if not b.viewed and b.value is not None]
    returned = set(map(id, made))
    for tensor in tensors:
        buffer = buffer_of(tensor)
        value = buffer.value
        if id(buffer) in returned or value is None or value.__class__ is Donated:
            continue
        tape = state.tape
        number = number_on(tape, value)
        buffer.value = Donated(value, taker)
        for alias in aliased:
            if alias.tape is tape and _is_like(alias, value) and _inherits(tape, number, alias):
                aliased.remove(alias)
                break


def _is_like(alias: Value, value: Value) -> bool:
    return alias.spec.shape == value.spec.shape and alias.spec.dtype == value.spec.dtype


def _inherits(tape: Tape, number: int, alias: Value) -> bool:
    """Have the result take the memory of an input; of what this tape has made, that which it was to take."""
    if alias.number < 0 or alias.origin is not None:
        return False
    if number >= 0:
        origins = [origin for origin, n in tape.donated.items() if n == number]
        if not origins:
            return False
        number = origins[0]
    tape.donated[number] = alias.number
    return True
