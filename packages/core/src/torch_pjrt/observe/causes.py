"""Why a value is read just now, in words: `.item()`, control flow on a tensor, printing, ...

Our own code says what it is about with `because`. Where it does not, somebody's code asked for a value, and
the instruction that it is at says how: a jump asks for the truth of a tensor, a call has the name of what it
calls.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType

from torch_pjrt.observe.code_positions import position_of
from torch_pjrt.observe.lines import is_ours, user_frame
from torch_pjrt.session import session

READING = "reading a value"

#   function of PyTorch's    what it is to the user
_PYTORCHS = {
    "__array__": "NumPy",
    "__contains__": "`in`",
    "__format__": "formatting",
    "__reversed__": "reversed()",
}

#   instruction      what it asks of a tensor
_INSTRUCTIONS = {
    "BINARY_SLICE": "a tensor as an index",
    "BINARY_SUBSCR": "a tensor as an index",
    "BUILD_SLICE": "a tensor as an index",
    "COMPARE_OP": "a comparison of containers",
    "CONTAINS_OP": "`in`",
    "STORE_SLICE": "a tensor as an index",
    "STORE_SUBSCR": "a tensor as an index",
}
_TRUTH = "control flow on a tensor (bool)"
_TRUTHS = ("POP_JUMP", "JUMP_IF_", "TO_BOOL", "UNARY_NOT")
_LOADS = ("LOAD_", "PUSH_NULL + LOAD_")

_because: ContextVar[str | None] = ContextVar("because", default=None)
_MOST_ACTIONS = 10_000
_actions: dict[int, str] = session.own("what instructions ask of tensors", {})


@contextmanager
def because(cause: str) -> Iterator[None]:
    """Values that the block reads are read because of `cause`, unless a block around it said so already.

    >>> with because("my package reads sizes"):
    ...     torch_pjrt.sync()
    """
    if _because.get() is not None:
        yield
        return
    token = _because.set(cause)
    try:
        yield
    finally:
        _because.reset(token)


def cause_and_position(cause: str = READING) -> tuple[str, int]:
    """Why a value is read, and where in the user's code. A `cause` that is given is taken."""
    frame = sys._getframe(1)
    user = user_frame(frame)
    position = position_of(user)
    if cause is not READING:
        return cause, position
    said = _because.get()
    if said is not None:
        return said, position
    reader, in_backward = _reader(frame, user)
    if reader is None:
        return cause, position
    found = _PYTORCHS.get(reader.f_code.co_name) if reader is not user else None
    found = found or _action(reader)
    if reader is not user and reader.f_code.co_name not in _PYTORCHS:
        found += f" in {reader.f_code.co_qualname}"
    return found + (", in backward" if in_backward else ""), position


def _reader(frame: FrameType | None, user: FrameType | None) -> tuple[FrameType | None, bool]:
    """The innermost frame that is not ours, and whether backward runs between it and the user's."""
    reader = None
    in_backward = False
    while frame is not None:
        code = frame.f_code
        if is_ours(code.co_filename):
            in_backward |= code.co_name == "run_backward"
        elif reader is None:
            reader = frame
        if frame is user:
            break
        frame = frame.f_back
    return reader, in_backward


def _action(frame: FrameType) -> str:
    position = position_of(frame)
    action = _actions.get(position) if position else None
    if action is None:
        action = _named(frame.f_code, frame.f_lasti) or READING
        if position and len(_actions) < _MOST_ACTIONS:
            _actions[position] = action
    return action


def _named(code: CodeType, offset: int) -> str | None:
    """What the instruction at `offset` asks of a tensor; that may be in the call's cache, behind it."""
    before: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:
            break
        before.append(instruction)
    if not before:
        return None
    instruction = before.pop()
    name = instruction.opname
    if name.startswith(_TRUTHS):
        return _TRUTH
    if "CALL" in name:
        return _called(instruction, before)
    return _INSTRUCTIONS.get(name)


def _called(call: dis.Instruction, before: list[dis.Instruction]) -> str | None:
    """What is called: the last thing loaded that starts where the call starts."""
    for instruction in reversed(before):
        if not instruction.opname.startswith(_LOADS) or not isinstance(instruction.argval, str):
            continue
        if _start(instruction) == _start(call):
            method = "METHOD" in instruction.opname or "ATTR" in instruction.opname
            if not method and instruction.argval == "bool":
                return _TRUTH
            return f"{'.' if method else ''}{instruction.argval}()"
    return None


def _start(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    positions = instruction.positions
    return (positions.lineno, positions.col_offset) if positions is not None else (None, None)
