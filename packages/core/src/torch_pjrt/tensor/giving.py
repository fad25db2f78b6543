"""Tensors that a caller gives away: the coming program may take their memory for one of its results.

before  buffer ─► value, an input of the tape     after  buffer ─► Donated: asking for its array raises
        result ─► pending value                          value, which the tape alone holds
                                                         result ─► pending value, heir of the input
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from torch_pjrt.errors import DonatedTensor
from torch_pjrt.graph.tape import Value, number_on, state
from torch_pjrt.run.client import client
from torch_pjrt.tensor.buffer import buffer_of, is_pjrt

if TYPE_CHECKING:
    from torch_pjrt.graph.tape import Tape


class Donated(Value):
    """What a buffer holds whose content was given away to `taker`."""

    __slots__ = ("taker",)

    def __init__(self, given: Value, taker: str) -> None:
        self.face = given.face
        self.number = 0
        self.tape = None
        self.origin = None
        self.taker = taker

    def __repr__(self) -> str:
        return f"Donated({self.face}, to {self.taker})"

    @property
    def array(self) -> NoReturn:  # type: ignore[override]
        raise DonatedTensor(
            f"A tensor is used whose memory was given to {self.taker}.",
            saw=str(self.face),
            hint="use what the call has returned; or do not name the argument in `donate`",
        )


def give_away(tensors: Sequence[torch.Tensor], results: Sequence[Any], taker: str) -> None:
    """Let what is recorded take the memory of `tensors` for those of `results` that look alike.

    From now on using them, or what shares memory with them, raises `DonatedTensor`. Those that are among the
    results, or share memory with one, stay. Does nothing on a device whose programs take no memory.

        y = x * 2
        give_away([x], [y], "a step of mine")
    """
    if not client().donates:
        return
    made = [buffer_of(x) for x in results if is_pjrt(x)]
    heirs = [b.value for b in made if not b.viewed and b.value is not None]
    returned = set(map(id, made))
    for tensor in tensors:
        buffer = buffer_of(tensor)
        value = buffer.value
        if id(buffer) in returned or value is None or value.__class__ is Donated:
            continue
        tape = state.tape
        number = number_on(tape, value)
        buffer.value = Donated(value, taker)
        for heir in heirs:
            if heir.tape is tape and _is_like(heir, value) and _inherits(tape, number, heir):
                heirs.remove(heir)
                break


def _is_like(heir: Value, value: Value) -> bool:
    return heir.face.shape == value.face.shape and heir.face.dtype == value.face.dtype


def _inherits(tape: Tape, number: int, heir: Value) -> bool:
    """Have the heir take the memory of an input; of what this tape has made, that which it was to take."""
    if heir.number < 0 or heir.origin is not None:
        return False
    if number >= 0:
        origins = [origin for origin, n in tape.given.items() if n == number]
        if not origins:
            return False
        number = origins[0]
    tape.given[number] = heir.number
    return True
