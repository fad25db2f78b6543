"""Something else that comes between two instructions of ours, as handlers of signals and finalizers do."""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch_pjrt
from torch_pjrt.interrupts.signals import waits

_OURS = str(Path(torch_pjrt.__file__).parent)
_CALLS = ("CALL", "CALL_FUNCTION_EX", "RESUME", "FOR_ITER", "SEND")
_MAKES = ("BUILD_", "MAKE_", "LIST_", "GET_ITER", "UNPACK_", "PRECALL", *_CALLS)


@cache
def positions_of(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions before which something else may run."""
    found: set[int] = set()
    before = None
    instructions = list(dis.get_instructions(code))
    backward = {x.argval for x in instructions if x.opname.startswith("JUMP_BACKWARD")}
    for i, one in enumerate(instructions):
        after_call = one.offset in backward or (before is not None and before.opname in _CALLS)
        makes = one.opname.startswith(_MAKES)
        if (
            one.opname == "BINARY_OP"
        ):  # `+=` of a local name may make a tuple; else it is of integers and lists
            makes = one.argrepr == "+=" and instructions[i + 1].opname == "STORE_FAST"
        if makes and any(x.argval == "append" for x in instructions[max(0, i - 4) : i]):
            makes = False  # a list makes nothing to append
        if one.opname != "RESUME" and (after_call or makes):
            found.add(one.offset)
        before = one
    return frozenset(found)


@cache
def positions_after_calls(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions before which a handler of a signal may be called.

    An exception that another thread has raised here comes there, too.
    """
    found: set[int] = set()
    before = None
    for one in dis.get_instructions(code):
        if before is not None and before.opname in ("CALL", "CALL_FUNCTION_EX", "RESUME"):
            found.add(one.offset)
        if one.opname.startswith("JUMP_BACKWARD"):
            found.add(one.argval)
        before = one
    return frozenset(found)


@contextmanager
def signalled(at: int | None, number: int, files: tuple[str, ...]) -> Iterator[list[Any]]:
    """While the block runs, raise a signal once, at the place of this number; lists all it comes by.

    These are places in our code and in the `files`; each counts once, however often it is come by.
    """
    with _at_place(at, partial(signal.raise_signal, number), files, waits.codes) as places:
        yield places


@contextmanager
def raised_from_elsewhere(
    at: int | None, error: type[BaseException], files: tuple[str, ...]
) -> Iterator[list[Any]]:
    """As `signalled`; an exception comes, as by another thread. No function has it wait."""
    here = ctypes.c_ulong(threading.get_ident())
    raise_here = ctypes.pythonapi.PyThreadState_SetAsyncExc
    act = partial(raise_here, here, ctypes.py_object(error))
    with _at_place(at, act, files, set()) as places:
        yield places


@contextmanager
def _at_place(
    at: int | None, act: Callable[[], Any], files: tuple[str, ...], without: Set[CodeType]
) -> Iterator[list[Any]]:
    came_by: dict[Any, None] = {}
    places: list[Any] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith((_OURS, *files)) or code in without:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in positions_after_calls(code):
            place = (code, frame.f_lasti)
            if place not in came_by:
                came_by[place] = None
                places.append(place)
                if len(places) - 1 == at:
                    act()
        return trace

    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(None)


@contextmanager
def intruding(
    at: int | None,
    intrude: Callable[[], None],
    where: list[str] | None = None,
    most_calls: int | None = None,
) -> Iterator[list[int]]:
    """While the block runs, call `intrude` once, at the place of this number; counts all it comes by.

    `where` gets the file of each. Of each function at most so many calls are looked into.
    """
    n = [0]
    calls: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS) or "/run/" in frame.f_code.co_filename:
            return None
        if event == "call":
            calls[frame.f_code] += 1
            if most_calls is not None and calls[frame.f_code] > most_calls:
                return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in positions_of(frame.f_code):
            if where is not None:
                where.append(frame.f_code.co_filename)
            if n[0] == at:
                intrude()
            n[0] += 1
        return trace

    sys.settrace(trace)
    try:
        yield n
    finally:
        sys.settrace(None)
