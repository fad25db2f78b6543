"""What PyTorch's C++ asks of the backend, and how an error survives its destructors.

A Python backend's device guard asks for the device type while unwinding from an exception, in code that
must not throw. There, running Python code finds the error set, raises `SystemError`, and the process
ends. `type_` absorbs that: it keeps the original error, and `_engine_run_backward` raises it afterwards.
The same happens where a handler of a signal raises as it asks: `getStream`, which autograd calls for each
node that it records, is one of those that must not throw. So handlers wait meanwhile
(`interrupts/signals.py`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from itertools import cycle, starmap
from operator import methodcaller
from typing import Any, ClassVar

import torch

from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.interrupts.signals import ONCE, Waits, came, deliver_soon, waits
from torch_pjrt.session import session

# A call that goes through C: CPython checks its result, and raises `SystemError` if an exception is in
# flight. A call from Python to Python would not be checked, nor one that the interpreter specializes.
_harmless = partial(int)


class _Again(BaseException):
    """Stands for the error that is raised again: that is what making one gives."""

    raised: ClassVar[list[BaseException]] = []

    def __new__(cls, *made: BaseException) -> BaseException:  # type: ignore[misc]
        return made[0] if made else cls.raised.pop()


def _always(answer: Any, errors: list[BaseException], waits: Waits, step: int) -> Iterator[Any]:
    """The answer, again and again; whatever is raised meanwhile does not come out.

    Another thread may have an exception raised wherever Python code runs, at the start of a function too.
    What resumes a generator is in C, and the place where it goes on lies within `try`. In the handler, and
    between the request to raise again and `yield`, there is no call, and so nothing is raised. What was in
    flight goes to `errors`. What was raised here is raised again once Python code runs on this thread.

    Handlers of signals wait from an answer of `step` 1 to one of -1, and within.
    """
    soon = ((ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_Again)),)
    raise_soon = ctypes.pythonapi.PyThreadState_SetAsyncExc
    is_raised_soon = True
    is_begun = False
    while True:
        try:
            while True:
                if not is_raised_soon:
                    is_raised_soon = True
                    [*starmap(raise_soon, soon)]  # pyright: ignore[reportUnusedExpression]
                if is_begun:
                    waits.n += step
                    if came and step < 0:
                        [*starmap(deliver_soon, ONCE)]  # pyright: ignore[reportUnusedExpression]
                is_begun = True
                yield answer
                _harmless()
        except GeneratorExit:
            return
        except BaseException as error:
            if error.__class__ is SystemError and error.__cause__ is not None:
                errors += (error.__cause__,)
            else:
                _Again.raised += (error,)
                is_raised_soon = False


waits.codes.add(_always.__code__)


def _in_turn(made: Callable[[], Iterator[Any]]) -> Callable[[], Any]:
    """In C: asks another such iterator each time. While one runs, a finalizer may record, and so ask."""
    several = [made() for _ in range(_DEEPEST)]
    for one in several:
        next(one)
    turns = cycle(several)
    # At the end of its first round `cycle` looks whether an exception is set, and would take the one in
    # flight for its own: that round is over before anybody asks.
    for _ in range(_DEEPEST + 1):
        next(turns)
    return map(next, turns).__next__


_DEEPEST = 16  # finalizers within finalizers


def _of_thread(name: str) -> Callable[[], Any]:
    """In C: asks the generator of the thread that calls."""
    return partial(methodcaller(name), _in_flight)


class _InFlight(threading.local):
    """On this thread: the errors that were set when the guard was asked, and how often backward has run.

    What is asked of it while an error is in flight has a name in the class, too. CPython looks a name up in
    the class first, and where it is not in its cache of such names, and the class lacks it, the search
    finds the error set, takes it for its own, and clears it.
    """

    type_: Any = None
    override: Any = None

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.n_runs = 0
        is_main = threading.get_ident() == threading.main_thread().ident
        its_waits = waits if is_main else Waits()  # handlers run on the main thread only
        kind = torch._C._autograd.DeviceType.PrivateUse1  # pyright: ignore[reportAttributeAccessIssue]
        override = partial(methodcaller("type_"), self)
        self.type_ = _in_turn(lambda: _always(kind, self.errors, its_waits, -1))
        self.override = _in_turn(lambda: _always(override, self.errors, its_waits, 1))


_in_flight = session.own("errors in backward", _InFlight())


class PjrtGuard(torch._C._acc.DeviceGuard):  # pyright: ignore[reportAttributeAccessIssue]
    """The device guard: says which device type it guards. C++ asks where an error would end the process.

    It looks `type_` up, has handlers of signals called (its `str()` does so), and calls what it has found. So
    handlers wait from the one to the other.
    """

    __slots__ = ("override",)
    type_ = property(methodcaller("override"))  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.override = _of_thread("override")


class PjrtHooks(torch._C._acc.PrivateUse1Hooks):  # pyright: ignore[reportAttributeAccessIssue]
    """The accelerator hooks."""

    def is_available(self) -> bool:
        from torch_pjrt.device.availability import is_available

        return is_available()

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True


# What is done once, before the first backward that is to be differentiated itself: it needs more kernels.
before_differentiated: list[Callable[[], None]] = session.own(
    "what is done before the first backward of a backward", []
)
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
            # An interrupt comes after it: one that unwinds the engine would end the process.
            with torch.autograd.set_multithreading_enabled(False), quiet():
                result = run(*args, **kwargs)
        except BaseException as error:
            kept = _first_kept()
            try:
                if kept is not None and kept is not error and isinstance(error, SystemError):
                    raise kept from None
                raise
            finally:
                del kept  # its traceback holds this frame, and with it the graph
        kept = _first_kept()
        try:
            if kept is not None:
                raise kept
        finally:
            del kept
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
