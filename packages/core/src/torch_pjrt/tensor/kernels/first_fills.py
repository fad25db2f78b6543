"""Tensors of one number that an optimizer makes in its first step: they come from the host.

An optimizer that somebody wrote makes its state within its first step, mostly zeros. Recorded with the rest
they would make that step another program than that of all steps to come, and each model would be compiled
twice. As arrays that are there they are inputs of it, as they are of the next. Of PyTorch's own optimizers
the state is made before (`device/optimizer_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from torch_pjrt.graph.tape import BorrowingTape, onto, state
from torch_pjrt.overloads import aten
from torch_pjrt.run.fills import fill
from torch_pjrt.tensor.recording.kernel_source import kernel_of
from torch_pjrt.tensor.storage.buffer import buffer_of

_recording = cache(kernel_of)


def _kernel(op: Any) -> Callable[..., torch.Tensor]:
    def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
        if state.tape.makes_state:
            # What it is like may be pending, and stays so.
            with onto(tape := BorrowingTape()):
                try:
                    made = _recording(op)(*args, **kwargs)
                finally:
                    tape.give_back()
            value = buffer_of(made).value if tape.values else None
            if value is None or fill(tape, [value.number]):
                return made
        return _recording(op)(*args, **kwargs)

    return filled


KERNELS: dict[Any, Any] = {
    op: _kernel(op)
    for op in (
        aten.full.default,
        aten.full_like.default,
        aten.new_full.default,
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.ones.default,
        aten.ones_like.default,
        aten.zeros.default,
        aten.zeros_like.default,
    )
}
