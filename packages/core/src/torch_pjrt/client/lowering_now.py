"""The program that is being lowered: its chips, and what rules ask of it as a whole.

How XLA spreads a value in the middle of a program over chips is known when all of the program has been
lowered. A rule that needs to know asks: the program is then lowered twice, and the second time the rule is
told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax

from torch_pjrt.session import session

Question = Callable[[Any], Any]


class ProgramLowering:
    """A program that is being lowered on this thread.

    chips    the ones that it is for, in the order of its mesh; XLA splits it, where these are several. None
             where nobody knows: of a program that is exported, say, and where only shapes are asked for.
    n_asked  how often rules have asked so far: what tells their calls apart, the same both times.

        now = lowering_now()  # in a rule
        number, found = now.n_asked, now.ask(how_calls_lie)  # a dict of numbers, say

    Outside of any rule:

        >>> now = lowering_now()
        >>> now.chips, now.n_asked
        ((), 0)
    """

    def __init__(self, chips: Sequence[Any], answers: dict[Question, Any] | None = None) -> None:
        self.chips = chips
        self.n_asked = 0
        self._questions: dict[Question, None] = {}
        self._answers = answers

    def ask(self, question: Question) -> Any:
        """What `question` gives of the program's StableHLO module, as XLA will get it; None the first time.

        The rule must then give arrays of the right shapes: the program is lowered again, and this one
        forgotten. `question` is called once for a program, whatever calls ask with it, and changes nothing.
        """
        self.n_asked += 1
        if self._answers is None:
            self._questions[question] = None
            return None
        return self._answers[question]

    def answers(self, module: Any) -> dict[Question, Any]:
        """What all that was asked gives of a module; empty where nothing was."""
        return {question: question(module) for question in self._questions}


class _Here(threading.local):
    lowering = ProgramLowering(())


_here = session.own("the program that is being lowered", _Here())


def lowering_now() -> ProgramLowering:
    """The program that this thread lowers, whose rules are called; one without chips outside of any.

    >>> len(lowering_now().chips)
    0
    """
    return _here.lowering


def lowered(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    chips: Sequence[Any],
    prepare: Callable[[Any], None],
    **options: Any,
) -> Any:
    """The function lowered for chips, by `jax.jit` with these options, and prepared; again if a rule asks."""
    found, answers = _once(function, arguments, ProgramLowering(chips), prepare, options)
    if answers:
        told = ProgramLowering(chips, answers)
        found, _ = _once(_another(function), arguments, told, prepare, options)
    return found


def _another(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same: of the one itself JAX would take what it has traced already."""

    @wraps(function)
    def anew(*given: Any) -> Any:
        return function(*given)

    return anew


def _once(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    lowering: ProgramLowering,
    prepare: Callable[[Any], None],
    options: dict[str, Any],
) -> tuple[Any, dict[Question, Any]]:
    before, _here.lowering = _here.lowering, lowering
    try:
        found = jax.jit(function, **options).lower(*arguments)
    finally:
        _here.lowering = before
    prepare(found)
    return found, lowering.answers(found.compiler_ir("stablehlo"))


def program_chips() -> int:
    """On how many chips the program runs that a rule is called for; XLA splits it, where these are several.

    A rule asks that calls a kernel, which XLA cannot split.

    >>> program_chips()
    1
    """
    return len(_here.lowering.chips) or 1


def chips_of(arguments: Any) -> Sequence[Any]:
    """The chips on which arguments or shardings lie, in the order of their mesh; () if all are on one."""
    for x in jax.tree.leaves(arguments):
        sharding = getattr(x, "sharding", x)
        if sharding is not None and len(sharding.device_set) > 1:
            mesh = getattr(sharding, "mesh", None)
            return list(sharding.device_set if mesh is None else mesh.devices.flat)
    return ()
