"""Lines: where in the user's program each operator on the tape was called. Off unless somebody asks.

While it is on, the code of a tape is a list that notes the caller's frame whenever a node is appended:
kernels do not know of it, and while it is off nothing is asked of them. Nodes of `graph_of(tape, ...)` carry
their line; passes keep it, since they rewrite nodes by `replace`.

An operator of backward gets the line of the forward operator whose gradient it computes.

    with lines.noted("recompile"):          # or lines.note_for("recompile"), lines.stop_for("recompile")
        ...
    [str(line) for line in lines_of(tape)]  # ["model.py:12", "model.py:13", "None"]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch

from torch_pjrt.graph.graph import graph_of
from torch_pjrt.graph.tape import Tape, state
from torch_pjrt.observe import modules


class Line(NamedTuple):
    """A place in the user's program.

    file, number  the innermost line that is neither PyTorch's, JAX's, the standard library's nor ours.
    function      the name of the function it is in.
    module        the path of the module that was running, `GPT/blocks.3/attn`; "" where none was.
    backward      the operator computes a gradient of what that line computed.
    """

    file: str
    number: int
    function: str
    module: str = ""
    backward: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"

    def told(self) -> str:
        """As people are told of it: `model.py:12, GPT/blocks.3/attn, in backward`."""
        backward = "in backward" if self.backward else ""
        return ", ".join(filter(None, (str(self), self.module, backward)))


class NotedCode(list[int]):
    """A tape's code that notes the line of each node: `lines` by the place where the node begins."""

    __slots__ = ("lines",)

    def __init__(self, code: list[int] | tuple[int, ...] = ()) -> None:
        super().__init__(code)
        self.lines: dict[int, Line | None] = {}

    def __iadd__(self, code: Any) -> NotedCode:  # type: ignore[override]
        end = len(self)
        self.lines[end] = _current_line(sys._getframe(1))
        # An interrupt comes before this or after the whole node: a subscript calls nothing.
        self[end:] = code
        return self


def lines_of(tape: Tape) -> list[Line | None]:
    """For each node of the tape, in order, its line; None for those recorded while nobody asked."""
    return [node.line for node in graph_of(tape, ()).nodes]


def is_on() -> bool:
    """Whether lines are noted now."""
    return bool(_reasons)


def are_in_programs() -> bool:
    """Whether a program that is compiled now gets the lines of its nodes into its metadata."""
    return bool(_reasons & _in_programs)


def note_for(reason: str, *, in_programs: bool = False) -> None:
    """Note lines from now on, until `stop_for` was called for every reason.

    With `in_programs` they go into XLA's metadata too: then they are part of what is compiled.
    """
    if in_programs:
        _in_programs.add(reason)
    if not _reasons:
        Tape.new_code = NotedCode
        modules.watch()
    _reasons.add(reason)
    if not isinstance(state.tape.code, NotedCode):
        state.tape.code = NotedCode(state.tape.code)


def stop_for(reason: str) -> None:
    """Note lines no longer, unless for another reason."""
    if _reasons == {reason}:
        Tape.new_code = list
        state.tape.code = list(state.tape.code)
        _forward.clear()
        modules.unwatch()
    _reasons.discard(reason)


@contextmanager
def noted(reason: str, *, in_programs: bool = False) -> Iterator[None]:
    """Note lines within the block."""
    was_on = reason in _reasons
    note_for(reason, in_programs=in_programs)
    try:
        yield
    finally:
        if not was_on:
            stop_for(reason)


_reasons: set[str] = set()
_in_programs: set[str] = set()  # reasons that want them there

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INSIDE = (
    _HERE + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    "<frozen ",
)
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_is_inside: dict[str, bool] = {}

# Lines of forward operators by the sequence number of the autograd node that their gradient is.
_forward: dict[int, Line] = {}
_MOST_FORWARD = 1 << 17

_sequence_number: Any = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]
_autograd_node: Any = torch._C._current_autograd_node  # type: ignore[attr-defined]


def _current_line(frame: FrameType | None) -> Line | None:
    """The line of the operator that is being recorded; `frame` is any of ours."""
    node = _autograd_node()
    if node is not None:
        line = _forward.get(node._sequence_nr())
        if line is not None:
            return line._replace(backward=True)
    line = user_line(frame)
    if line is not None and torch.is_grad_enabled():
        # PyTorch has made the operator's autograd node before the kernel, if it makes one.
        _forward.setdefault(_sequence_number() - 1, line)
        if len(_forward) > _MOST_FORWARD:
            for old in list(_forward)[: _MOST_FORWARD // 2]:
                del _forward[old]
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


def is_ours(file: str) -> bool:
    """Whether it is a file of this package, or a kernel that we wrote out."""
    return file.startswith(_HERE + os.sep)


def _find_inside(file: str) -> bool:
    """Whether it is PyTorch's, JAX's, ours or the standard library's."""
    if file.startswith(_INSIDE):
        return True
    jax = sys.modules.get("jax")
    if jax is not None and file.startswith(os.path.dirname(jax.__file__ or "?") + os.sep):
        return True
    return file.startswith(_STANDARD) and "-packages" not in file[len(_STANDARD) :]
