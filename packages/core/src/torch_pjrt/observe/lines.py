"""Lines: where in the user's program each operator on the tape was called. Off unless somebody asks.

While it is on, whoever asks for this thread's tape has its caller's line noted for the next node. Kernels do
not know of it, and while it is off nothing is asked of them. Nodes of `graph_of(tape, ...)` carry
their line; passes keep it, since they rewrite nodes by `replace`.

An operator of backward gets the line of the forward operator whose gradient it computes.

    with lines.noted("recompile"):          # or lines.note_for("recompile"), lines.stop_for("recompile")
        ...
    [str(line) for line in lines_of(tape)]  # ["model.py:12", "model.py:13", "None"]
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from torch_pjrt.graph.graph import graph_of
from torch_pjrt.graph.line import Line
from torch_pjrt.graph.tape import State, Tape, state
from torch_pjrt.observe import modules
from torch_pjrt.session import session


class NotedCode(list[Any]):
    """A tape's code with the lines of its nodes. It is appended to as any list is: that calls nothing."""

    __slots__ = ("lines",)

    def __init__(self, code: Iterable[Any] = ()) -> None:
        super().__init__(code)
        self.lines = NotedLines()


class NotedLines(dict[int, "Line | None"]):
    """Lines by the position where a node begins, noted before the node is there.

    A node without a note has the line of the last one before it: the read of a view and the operator that
    reads come of one call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._positions: list[int] = []

    def get(self, position: int, default: Line | None = None) -> Line | None:  # type: ignore[override]
        if position in self:
            return self[position]
        if len(self._positions) != len(self):
            self._positions = sorted(self)
        found = bisect_right(self._positions, position) - 1
        return self[self._positions[found]] if found >= 0 else default


def _get_tape(state: State) -> Tape:
    """The thread's tape, for one that is about to record: the next node comes from the caller's line.

    Whoever appends asks for the tape first, and again if something else has recorded in between
    (`graph/tape.py`). So the note is made where anything may be called.
    """
    tape: Tape = vars(state)["tape"]
    code = tape.code
    if isinstance(code, NotedCode):
        line = _current_line(sys._getframe(1))
        code.lines[len(code)] = line
    return tape


def _set_tape(state: State, tape: Tape) -> None:
    vars(state)["tape"] = tape


def lines_of(tape: Tape) -> list[Line | None]:
    """For each node of the tape, in order, its line; None for those recorded while nobody asked."""
    return [node.line for node in graph_of(tape, ()).nodes]


def is_on() -> bool:
    """Whether lines are noted now."""
    return bool(_noting.reasons)


def are_in_programs() -> bool:
    """Whether a program that is compiled now gets the lines of its nodes into its metadata."""
    return bool(_noting.reasons & _noting.in_programs)


def note_for(reason: str, *, in_programs: bool = False, with_modules: bool = True) -> None:
    """Note lines from now on, until `stop_for` was called for every reason.

    With `in_programs` they go into XLA's metadata too: then they are part of what is compiled. Without
    `with_modules` the lines do not say in which module they are, and modules get no hooks.

        >>> note_lines("my package", with_modules=False)
        >>> y = torch.ones(2, device="pjrt").sin()
        >>> line = graph_of(state.tape, [value_of(y).number]).nodes[-1].line
        >>> type(line).__name__
        'Line'
    """
    if in_programs:
        _noting.in_programs.add(reason)
    if with_modules and reason not in _noting.with_modules:
        _noting.with_modules.add(reason)
        modules.watch()
    if not _noting.reasons:
        Tape.new_code = NotedCode
        State.tape = property(_get_tape, _set_tape)  # type: ignore[assignment]
    _noting.reasons.add(reason)
    if not isinstance(state.tape.code, NotedCode):
        state.tape.code = NotedCode(state.tape.code)


def stop_for(reason: str) -> None:
    """Note lines no longer, unless for another reason."""
    if _noting.reasons == {reason}:
        Tape.new_code = list
        del State.tape
        state.tape.code = list(state.tape.code)
        _noting.forward.clear()
    if reason in _noting.with_modules:
        _noting.with_modules.discard(reason)
        modules.unwatch()
    _noting.reasons.discard(reason)


@contextmanager
def noted(reason: str, *, in_programs: bool = False) -> Iterator[None]:
    """Note lines within the block."""
    was_on = reason in _noting.reasons
    note_for(reason, in_programs=in_programs)
    try:
        yield
    finally:
        if not was_on:
            stop_for(reason)


class _Noting:
    """Who wants lines, and what is noted.

    reasons      for which they are noted; `in_programs` are those that want them there, `with_modules` those
                 that want modules with them.
    forward      lines of forward operators, by the sequence number of the node of autograd that computes
                 their gradient.
    """

    def __init__(self) -> None:
        self.reasons: set[str] = set()
        self.in_programs: set[str] = set()
        self.with_modules: set[str] = set()
        self.forward: dict[int, Line] = {}


_noting = session.own("lines that are noted", _Noting())

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INSIDE = (
    _HERE + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    "<frozen ",
)
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_is_inside: dict[str, bool] = session.own("files of libraries", {})
_passed_over: set[str] = session.own("files that lines are passed over in", set())

_MOST_FORWARD = 1 << 17

_sequence_number: Any = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]
_autograd_node: Any = torch._C._current_autograd_node  # type: ignore[attr-defined]


def _current_line(frame: FrameType | None) -> Line | None:
    """The line of the operator that is being recorded; `frame` is any of ours."""
    node = _autograd_node()
    if node is not None:
        line = _noting.forward.get(node._sequence_nr())
        if line is not None:
            return line._replace(backward=True)
    line = user_line(frame)
    if line is not None and torch.is_grad_enabled():
        # PyTorch has made the operator's autograd node before the kernel, if it makes one.
        _noting.forward.setdefault(_sequence_number() - 1, line)
        if len(_noting.forward) > _MOST_FORWARD:
            for old in list(_noting.forward)[: _MOST_FORWARD // 2]:
                del _noting.forward[old]
    return line


def user_line(frame: FrameType | None = None) -> Line | None:
    """The innermost line of the user's, from `frame` (the caller's) outwards; None where there is none."""
    if frame is None:
        frame = sys._getframe(1)
    frame = user_frame(frame)
    if frame is None:
        return None
    code = frame.f_code
    return Line(code.co_filename, frame.f_lineno, code.co_name, modules.path())


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's, from this one outwards."""
    while frame is not None:
        file = frame.f_code.co_filename
        inside = _is_inside.get(file)
        if inside is None:
            inside = _is_inside[file] = _find_inside(file)
        if not inside:
            return frame
        frame = frame.f_back
    return None


def pass_over_lines(file: str) -> None:
    """Have what is called in this file belong to its caller's line: it stands before PyTorch's functions.

    So reports name the user's code. In a module, give its `__file__`.

        >>> pass_over_lines("my_package/stand_ins.py")
    """
    _passed_over.add(file)
    _is_inside[file] = True


def is_ours(file: str) -> bool:
    """Whether it is a file of this package, a kernel that we wrote out, or one that is passed over."""
    return file.startswith(_HERE + os.sep) or file in _passed_over


def _find_inside(file: str) -> bool:
    """Whether it is PyTorch's, JAX's, ours or the standard library's."""
    if file.startswith(_INSIDE):
        return True
    jax = sys.modules.get("jax")
    if jax is not None and file.startswith(os.path.dirname(jax.__file__ or "?") + os.sep):
        return True
    return file.startswith(_STANDARD) and "-packages" not in file[len(_STANDARD) :]
