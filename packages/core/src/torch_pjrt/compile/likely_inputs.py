"""Numbers of a new program that are inputs from the start: those that differed in a program like it.

An optimizer's first step makes its state, so its second step is another program; what changes from step to
step, a bias correction, would be a constant of both, and an input only of a third. Here the second program
learns from the first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from torch_pjrt.graph.signature import InternalOp, by_number
from torch_pjrt.graph.tape import Tape

_LIKE = 0.7  # of its operators with numbers are those of the other, in the same number
_recent: deque[Called] = deque(maxlen=4)

# For each signature with numbers: the numbers of its calls in order, each its kind, its index and its value.
Called = dict[int, list[tuple[type, int, int | float]]]


def likely_inputs(tape: Tape) -> tuple[list[int], list[int]]:
    """Which ints and floats of a new program are likely to change, by index; it is remembered itself."""
    called: Called = {}
    for number, kind, index in _numbers(tape):
        value = (tape.ints if kind is int else tape.floats)[index]
        called.setdefault(number, []).append((kind, index, value))
    found: set[tuple[type, int]] = set()
    for before in tuple(_recent):  # other threads add to it
        shared = [n for n, calls in called.items() if len(before.get(n, ())) == len(calls)]
        if len(shared) < _LIKE * max(len(called), len(before)):
            continue
        for n in shared:
            pairs = zip(called[n], before[n], strict=True)
            found.update((kind, i) for (kind, i, value), (_, _, old) in pairs if value != old)
    _recent.append(called)
    return [sorted(i for kind, i in found if kind is one) for one in (int, float)]


def forget() -> None:
    """Know of no program."""
    _recent.clear()


def _numbers(tape: Tape) -> Iterator[tuple[int, type, int]]:
    """Of each number of a PyTorch operator: the signature, int or float, and its index there."""
    code, counts, place = tape.code, Counter[type](), 0
    while place < len(code):
        signature = by_number(code[place])
        for kind in signature.numbers:
            # The place of a view stays a constant where it can: a slice there is cheaper.
            if not isinstance(signature.op, InternalOp):
                yield signature.number, kind, counts[kind]
            counts[kind] += 1
        place += 1 + len(signature.faces) + 2 * signature.random
