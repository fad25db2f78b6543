"""In-place operators on lists (`_foreach_add_`) whose elements share memory.

PyTorch does one element after the other; recorded as one node, all would read what was there before. So
where an element writes what another one uses, they are recorded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_pjrt.graph.tape import Value
from torch_pjrt.tensor.buffer import buffer_of, is_pjrt, look_of


def depends_on_order(
    inputs: Sequence[Value], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether what the first list writes to, or the same view of it, is used at another place of some list.

    `inputs` are the values of all the tensors: if all differ, as they mostly do, that is seen at a glance.
    Views that overlap without being the same are not looked for.
    """
    if len(set(map(id, inputs))) == len(inputs) and len(set(map(id, args[0]))) == len(args[0]):
        return False
    place_of = {_memory(t): i for i, t in enumerate(args[0])}
    if len(place_of) < len(args[0]):
        return True
    return any(
        place_of.get(_memory(t), i) != i
        for given in (*args[1:], *kwargs.values())
        if isinstance(given, (list, tuple))
        for i, t in enumerate(given)
        if is_pjrt(t)
    )


def _memory(t: torch.Tensor) -> tuple[Any, ...]:
    return buffer_of(t), look_of(t)


def one_by_one(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> None:
    """`call` the operator on lists of one element each."""

    def element(given: Any, i: int) -> Any:
        return [given[i]] if isinstance(given, (list, tuple)) else given

    for i in range(len(args[0])):
        call(op, tuple(element(a, i) for a in args), {k: element(v, i) for k, v in kwargs.items()})
