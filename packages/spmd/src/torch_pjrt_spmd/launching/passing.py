"""How functions, results and errors get from one process to another.

By cloudpickle where it is installed: then functions of a notebook or of a script go as they are. Pickle takes
only what the other process can import. Tensors of the device arrive on the host.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_pjrt.errors import TorchPjrtError


class LaunchError(TorchPjrtError, RuntimeError):
    """Processes cannot be started with this function, or one of them failed.

    rank        of the process that failed first; None where none has been started.
    traceback   its traceback, as Python prints it; what is known of its end where it left none.
    `__cause__` its exception, where that could be passed on.
    """

    rank: int | None = None
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a process failed.

    time       when, by a clock that the processes of a host share, in seconds.
    error      the exception as bytes; empty where it could not be made bytes.
    is_result  whether it followed from the failure of another process, as far as one can tell.
    """

    rank: int
    time: float
    words: str
    traceback: str
    error: bytes = b""
    is_result: bool = False


def cloudpickle() -> ModuleType | None:
    """The package, where it is installed."""
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


def packed_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """A call, for another process. Raises `LaunchError` where it cannot go there."""
    pickler = cloudpickle() or pickle
    try:
        return pickler.dumps((fn, on_host(args)))
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise LaunchError(
            f"The function `{name}` or its arguments cannot be passed to other processes.",
            saw=f"{type(error).__name__}: {error}",
            hint="have the function make what it needs"
            if pickler is not pickle
            else "`pip install cloudpickle`, or put the function into a module that can be imported",
        ) from error


def packed_result(result: Any) -> bytes:
    """What a function returned, for the launcher."""
    try:
        return (cloudpickle() or pickle).dumps(on_host(result))
    except Exception as error:
        raise LaunchError(
            "What the function returned cannot be passed to the launcher.",
            saw=f"{type(result).__name__}: {type(error).__name__}: {error}",
            hint="return numbers, strings, tensors, and lists or dictionaries of them",
        ) from error


def packed_error(error: BaseException) -> bytes:
    """An exception without its traceback; empty where it cannot go there and back."""
    try:
        data = (cloudpickle() or pickle).dumps(error.with_traceback(None))
        pickle.loads(data)
    except Exception:
        return b""
    return data


def on_host(value: Any) -> Any:
    """The value with tensors of the host in the place of those on devices."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
            return leaf.detach().cpu().requires_grad_(leaf.requires_grad)
        return leaf

    return pytree.tree_map(moved, value)


def failure_of(rank: int, time: float, error: BaseException) -> Failure:
    """What a process says of its end; to the other ranks, too."""
    from torch_pjrt_spmd.distributed.errors import PeerError

    if (health := sys.modules.get("torch_pjrt_spmd.distributed.health")) is not None:
        health.report_failure(error)
    ours = {__file__, str(Path(__file__).with_name("worker.py"))}
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    words = "".join(traceback.format_exception_only(error)).strip()
    kind = type(error).__name__
    follows = isinstance(error, PeerError) or kind == "DistNetworkError"
    follows |= kind in ("RuntimeError", "DistError") and "onnection" in str(error)
    return Failure(rank, time, words, text, packed_error(error), follows)


def first_of(failures: list[Failure]) -> Failure:
    """The failure that the others follow from."""
    return min(failures, key=lambda failure: (failure.is_result, failure.time))


def error_of(failure: Failure, n_ranks: int) -> LaunchError:
    """The error that the launcher raises."""
    error = LaunchError(
        f"Rank {failure.rank} of {n_ranks} failed: {failure.words}",
        saw=failure.traceback.strip().replace("\n", "\n    ") or None,
    )
    error.rank, error.traceback = failure.rank, failure.traceback
    if failure.error:
        error.__cause__ = pickle.loads(failure.error)
    return error
