"""`torch_pjrt.to_stablehlo()`: the program that would compute some tensors, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from torch_pjrt.compile.numbers import NumberPlan
from torch_pjrt.compile.uncached import lowered_uncached
from torch_pjrt.graph.tape import Tape, number_on, state
from torch_pjrt.observe.dumps import stablehlo_of
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt
from torch_pjrt.tensor.storage.view import value_of


def to_stablehlo(tensors: torch.Tensor | Iterable[torch.Tensor]) -> str:
    """The StableHLO of the program that would compute these `pjrt` tensors from what is on the device.

    tensors  one, or several: the results of the program, in their order.

    Nothing is run or compiled, and what is recorded stays as it is. A tensor that is on the device already
    is an input and a result of the program. Raises `TypeError` for a tensor of another device, and
    `LoweringError` if the program cannot be made.

        >>> text = torch_pjrt.to_stablehlo(torch.ones(2, device="pjrt") + 1)
        >>> "stablehlo.add" in text
        True
    """
    wanted = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    for tensor in wanted:
        if not is_pjrt(tensor):
            raise TypeError(
                f"to_stablehlo() takes tensors of the device pjrt, saw {_described(tensor)}"
            )
    tape = state.tape
    with _nothing_stays(tape, wanted):
        outputs = [number_on(tape, value_of(tensor)) for tensor in wanted]
        none = np.zeros(0, np.int64)
        return stablehlo_of(lowered_uncached(tape, outputs, NumberPlan(tape, none, none)))


@contextmanager
def _nothing_stays(tape: Tape, tensors: list[torch.Tensor]) -> Iterator[None]:
    """What reading the tensors records (the read of a view, an input) is taken back."""
    n_code, n_values, n_inputs = len(tape.code), len(tape.values), len(tape.inputs)
    n_ints = len(tape.ints)
    buffers = [(b, b.held()) for b in map(buffer_of, tensors)]
    try:
        yield
    finally:
        for value in tape.values[n_values:]:
            value.tape = None
        for buffer, held in buffers:
            buffer.hold_again(held)
        del tape.code[n_code:], tape.values[n_values:], tape.ints[n_ints:]
        tape.size = n_values
        tape.drop_inputs(n_inputs)


def _described(tensor: object) -> str:
    if isinstance(tensor, torch.Tensor):
        return f"a tensor on {tensor.device}"
    return type(tensor).__name__
