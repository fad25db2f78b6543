"""Numbers of a new program that are inputs from the start: those of optimizers, and what has differed before.

An optimizer's operators have learning rates, weight decay, momentum and bias corrections for numbers. These
change, sooner or later, and as inputs they cost nothing: so neither the second step of an optimizer that
goes over its parameters one by one, nor the epoch in which a schedule begins to lower a learning rate, needs
a program of its own. Operators on lists are known to be an optimizer's. Those on a tensor are, if they were
recorded within a `step`.

Another number that changes from step to step would be a constant of two programs where a first step is not
like the others, one that makes state say, and an input only of a third. Here the second program learns from
the first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from torch._ops import OpOverload

from torch_pjrt.graph.signature import Signature
from torch_pjrt.graph.tape import Tape
from torch_pjrt.overloads import aten
from torch_pjrt.session import session

# The rules of all these compute the same, with the same rounding, whether a number is known or not.
_ON_LISTS = (
    "_foreach_add",
    "_foreach_sub",
    "_foreach_mul",
    "_foreach_div",
    "_foreach_addc",
    "_foreach_lerp",
    "_fused_",
)
_IN_STEPS = frozenset(
    (
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.addcmul.default,
        aten.addcdiv.default,
        aten.lerp.Scalar,
    )
)

_LIKE = 0.7  # of its operators with numbers are those of the other, in the same number

# For each signature with numbers: the numbers of its calls in order, each its kind, its index and its value.
Called = dict[int, list[tuple[type, int, int | float]]]


class _Recent:
    """The numbers of the last new programs."""

    def __init__(self) -> None:
        self.called: deque[Called] = deque(maxlen=4)

    def forget(self) -> None:
        self.called.clear()


_recent = session.own("numbers of the last new programs", _Recent())


def likely_inputs(tape: Tape) -> tuple[list[int], list[int]]:
    """Which ints and floats of a new program are likely to change, by index; it is remembered itself."""
    called: Called = {}
    found: set[tuple[type, int]] = set()
    in_steps = tape.floats_of_steps()
    for signature, kind, index in _numbers(tape):
        value = (tape.ints if kind is int else tape.floats)[index]
        called.setdefault(signature.number, []).append((kind, index, value))
        if _is_on_lists(signature) or (
            kind is float and index in in_steps and signature.op in _IN_STEPS
        ):
            found.add((kind, index))
    for before in tuple(_recent.called):  # other threads add to it
        shared = [n for n, calls in called.items() if len(before.get(n, ())) == len(calls)]
        if len(shared) < _LIKE * max(len(called), len(before)):
            continue
        for n in shared:
            # Only so an offset of a view becomes one: where it stays a constant, a slice is cheaper.
            pairs = zip(called[n], before[n], strict=True)
            found.update((kind, i) for (kind, i, value), (_, _, old) in pairs if value != old)
    _recent.called.append(called)
    ints, floats = (sorted(i for kind, i in found if kind is one) for one in (int, float))
    return ints, floats


def forget() -> None:
    """Know of no program."""
    _recent.forget()


def _is_on_lists(signature: Signature) -> bool:
    return signature.op.__class__ is OpOverload and signature.op._opname.startswith(_ON_LISTS)


def _numbers(tape: Tape) -> Iterator[tuple[Signature, type, int]]:
    """Of each number: the signature, int or float, and its index there."""
    code, counts, position = tape.code, Counter[type](), 0
    while position < len(code):
        signature = code[position]
        for kind in signature.numbers:
            yield signature, kind, counts[kind]
            counts[kind] += 1
        position += 1 + len(signature.specs) + 2 * signature.random
