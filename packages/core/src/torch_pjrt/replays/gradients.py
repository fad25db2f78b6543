"""The gradients of the tensors that a step sees: which were there when it began, and which when it ended."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from copy import copy
from operator import attrgetter, is_
from typing import Any

import torch

from torch_pjrt.tensor.storage.buffer import Buffer, buffer_of, is_pjrt

_gradient_of = attrgetter("grad")


class Gradients:
    """Which gradients a replay of a call has to find.

    A tensor without one before the call has to be without one. A tensor with one has to have the one that
    the call left it with; or any other, if the call put a new one in its place without looking at it.

    tensors   all that were looked at.
    before    the buffers of the gradients that they had, or None.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Look before the call."""
        self.tensors = tensors
        self.before = [_buffer_of_gradient(x) for x in tensors]
        self._expected: list[Callable[[], torch.Tensor | None]] = []
        self._replaced: list[torch.Tensor] = []

    def end(self, replaced: Sequence[torch.Tensor]) -> list[str]:
        """Look after the call, which put new gradients to these; why it cannot be replayed."""
        gradients = list(map(_gradient_of, self.tensors))
        self._replaced = list(replaced)
        self._expect(gradients)
        n_taken = sum(
            had is not None and now is None for had, now in zip(self.before, gradients, strict=True)
        )
        if not n_taken:
            return []
        return [f"it takes away {n_taken} gradients that it did not make: make them in the step"]

    def _expect(self, gradients: list[torch.Tensor | None]) -> None:
        self._expected = [
            weakref.ref(gradient) if had is not None and gradient is not None else _none
            for had, gradient in zip(self.before, gradients, strict=True)
        ]

    def fit(self) -> bool:
        """Whether a replay would find the very gradients that the call left."""
        return all(
            map(is_, map(_gradient_of, self.tensors), [gradient() for gradient in self._expected])
        )

    def moved(self) -> Gradients | None:
        """If others are there in places where any will do: the same, with those expected."""
        gradients = list(map(_gradient_of, self.tensors))
        any_will_do = set(map(id, self._replaced))
        for tensor, now, gradient in zip(self.tensors, gradients, self._expected, strict=True):
            if now is not gradient() and (now is None or id(tensor) not in any_will_do):
                return None
        moved = copy(self)
        moved._expect(gradients)
        return moved


def _buffer_of_gradient(x: torch.Tensor) -> weakref.ref[Buffer] | None:
    gradient = x.grad
    if gradient is None:
        return None
    is_dense = gradient.layout is torch.strided and is_pjrt(gradient)
    there = weakref.ref(buffer_of(gradient)) if is_dense else _NOWHERE
    hash(there)  # while it is there: it remembers
    return there


_NOWHERE: Any = weakref.ref(Gradients)  # a sparse gradient has no buffer of its own


def _none() -> None:
    return None
