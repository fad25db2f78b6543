"""Where threads of this process are, in the user's words: a line of the program, and whether one compiles."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_LIBRARIES = ("torch", "torch_pjrt", "torch_pjrt_spmd", "torch_pjrt_dynamo", "jax", "jaxlib")
# Frames of these files mean that a thread traces, lowers or compiles.
_COMPILERS = tuple(
    path.replace("/", os.sep)
    for path in (
        "/jax/_src/compiler.py",
        "/jax/_src/interpreters/mlir.py",
        "/jax/_src/interpreters/partial_eval.py",
        "/torch/_dynamo/convert_frame.py",
        "/torch_pjrt/passes/runner.py",
    )
)
_known: dict[str, bool] = {}


def line_of(frame: FrameType | None) -> str | None:
    """`train.py:12 in step`: the innermost line of the user's, from this frame outwards."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_library(file):
            return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def current_line() -> str | None:
    """The line that has led here; in backward, which has threads of its own, that of the main thread."""
    return line_of(sys._getframe(1)) or line_of(sys._current_frames().get(_main()))


def main_line() -> str | None:
    """The line at which the main thread is now."""
    return line_of(sys._current_frames().get(_main()))


def is_compiling() -> bool:
    """Whether a thread traces, lowers or compiles now."""
    return any(_is_within(frame, _COMPILERS) for frame in sys._current_frames().values())


def is_launching() -> bool:
    """Whether a thread is in the launch of a program now."""
    launches = (
        os.path.join("torch_pjrt", "compile", "programs.py"),
        os.path.join("distributed", "programs.py"),
    )
    return any(_is_within(frame, launches) for frame in sys._current_frames().values())


def _main() -> int:
    return threading.main_thread().ident or 0


def _is_within(frame: FrameType | None, files: tuple[str, ...]) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(files):
            return True
        frame = frame.f_back
    return False


def _is_library(file: str) -> bool:
    found = _known.get(file)
    if found is None:
        found = _known[file] = (
            file.startswith("<frozen")
            or (file.startswith(_STANDARD) and "-packages" not in file[len(_STANDARD) :])
            or any(file.startswith(folder) for folder in _folders())
        )
    return found


def _folders() -> list[str]:
    modules = [sys.modules.get(name) for name in _LIBRARIES]
    files = [getattr(module, "__file__", None) for module in modules]
    return [os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file]
