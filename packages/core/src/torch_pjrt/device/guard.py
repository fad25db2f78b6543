"""What PyTorch's C++ asks of the backend, and how an error survives its destructors.

A Python backend's device guard asks for the device type while unwinding from an exception, in code that
must not throw. There, running Python code finds the error set, raises `SystemError`, and the process
ends. `type_` absorbs that: it keeps the original error, and `_engine_run_backward` raises it afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch


class _InFlight(threading.local):
    """On this thread: the errors that were set when the guard was asked, and how often backward has run."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.n_runs = 0


_in_flight = _InFlight()


# A call that goes through C: CPython checks its result, and raises `SystemError` if an exception is in
# flight. A call from Python to Python would not be checked, nor one that the interpreter specializes.
_harmless = partial(int)


class PjrtGuard(torch._C._acc.DeviceGuard):
    """The device guard: says which device type it guards."""

    def type_(self) -> torch._C._autograd.DeviceType:
        try:
            _harmless()
        except SystemError as error:
            if error.__cause__ is not None:
                _in_flight.errors.append(error.__cause__)
        return torch._C._autograd.DeviceType.PrivateUse1


class PjrtHooks(torch._C._acc.PrivateUse1Hooks):
    """The accelerator hooks."""

    def is_available(self) -> bool:
        from torch_pjrt.device.availability import is_available

        return is_available()

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True


# What is done once, before the first backward that is to be differentiated itself: it needs more kernels.
before_differentiated: list[Callable[[], None]] = []
_preparing = threading.Lock()


def wrap_backward() -> None:
    """Make backward run on the calling thread and raise the error that the guard kept."""
    graph = torch.autograd.graph
    run = graph._engine_run_backward
    if getattr(run, "keeps_errors", False):
        return

    @wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _in_flight.errors.clear()
        if before_differentiated and _makes_graph(*args):
            _prepare()
        try:
            # On the calling thread: a worker thread frees its last gradients after backward has returned,
            # so that what is live, and with it the program, would change from step to step.
            _in_flight.n_runs += 1
            with torch.autograd.set_multithreading_enabled(False):
                result = run(*args, **kwargs)
        except BaseException as error:
            kept = _first_kept()
            if kept is not None and kept is not error and isinstance(error, SystemError):
                raise kept from None
            raise
        kept = _first_kept()
        if kept is not None:
            raise kept
        return result

    run_backward.keeps_errors = True  # type: ignore[attr-defined]
    _replace(run, run_backward)


def _prepare() -> None:
    with _preparing:  # another thread waits until all is done
        while before_differentiated:
            before_differentiated[-1]()
            before_differentiated.pop()


def _makes_graph(
    outputs: Any = None, gradients: Any = None, retain: Any = None, create: Any = False, *_: Any
) -> bool:
    """Whether the engine is called with `create_graph=True`, from its arguments."""
    return bool(create)


def _replace(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for module in (torch.autograd.graph, torch.autograd):
        if getattr(module, "_engine_run_backward", None) is old:
            module._engine_run_backward = new  # type: ignore[attr-defined]


def runs() -> int:
    """How often backward has run on this thread."""
    return _in_flight.n_runs


def _first_kept() -> BaseException | None:
    kept = _in_flight.errors[0] if _in_flight.errors else None
    _in_flight.errors.clear()
    return kept
