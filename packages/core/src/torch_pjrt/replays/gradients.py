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
    the call left it with; or any other, if the call put a new one in its place without looking at it; or the
    one that is at the same position among the arguments, if it was an argument.

    tensors   all that were looked at.
    before    the buffers of the gradients that they had, or None.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Look before the call."""
        self.tensors = tensors
        self.before = [_buffer_of_gradient(x) for x in tensors]
        self._expected: list[Callable[[], torch.Tensor | None] | int] = []
        self._replaced: list[torch.Tensor] = []

    def end(self, replaced: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> list[str]:
        """Look after the call, which put new gradients to some; why it cannot be replayed."""
        gradients = list(map(_gradient_of, self.tensors))
        self._replaced = list(replaced)
        self._expect(gradients, arguments)
        n_taken = sum(
            had is not None and now is None for had, now in zip(self.before, gradients, strict=True)
        )
        if not n_taken:
            return []
        return [f"it takes away {n_taken} gradients that it did not make: make them in the step"]

    def _expect(
        self, gradients: list[torch.Tensor | None], arguments: Sequence[torch.Tensor]
    ) -> None:
        positions = {id(x): i for i, x in enumerate(arguments)}
        self._expected = [
            _none
            if had is None or gradient is None
            else positions.get(id(gradient), weakref.ref(gradient))
            for had, gradient in zip(self.before, gradients, strict=True)
        ]

    def _found(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients that have to be there, for a call with these arguments."""
        return [arguments[x] if x.__class__ is int else x() for x in self._expected]  # type: ignore[operator,index]

    def fit(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Whether a replay would find the very gradients that the call left, or that are arguments."""
        return all(map(is_, map(_gradient_of, self.tensors), self._found(arguments)))

    def moved(self, arguments: Sequence[torch.Tensor]) -> Gradients | None:
        """If others are there in places where any will do: the same, with those expected."""
        gradients = list(map(_gradient_of, self.tensors))
        any_will_do = set(map(id, self._replaced))
        found = self._found(arguments)
        for tensor, now, gradient in zip(self.tensors, gradients, found, strict=True):
            if now is not gradient and (now is None or id(tensor) not in any_will_do):
                return None
        moved = copy(self)
        moved._expect(gradients, arguments)
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
