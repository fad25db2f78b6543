"""Where a step ends: `sync`, closures that run after it, and functions and blocks that end with one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

import torch_pjrt
from torch_pjrt.errors import UnsupportedError
from torch_pjrt.extend import counters
from torch_xla.experimental.eager import eager_mode_context


class _Closures(threading.local):
    """What runs at the next sync of this thread."""

    def __init__(self) -> None:
        self.now: list[Callable[[], Any]] = []
        self.beside: list[Callable[[], Any]] = []


_closures = _Closures()
_worker: list[ThreadPoolExecutor] = []


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run what is pending on this thread, then the closures that `add_step_closure` was given.

    wait    until the device has finished. Scopes are no part of programs here: `reset_scope` means nothing.
    """
    torch_pjrt.sync()
    if wait:
        torch.accelerator.synchronize()
    now, beside = _closures.now[:], _closures.beside[:]
    # The lists stay: a captured step would see others.
    _closures.now.clear()
    _closures.beside.clear()
    for closure in now:
        closure()
    if beside:
        if not _worker:
            _worker.append(ThreadPoolExecutor(1, thread_name_prefix="torch_xla-closures"))
        for closure in beside:
            _worker[0].submit(closure)


def add_step_closure(
    closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False
) -> None:
    """Call `closure(*args)` after the next sync; on a thread of its own if `run_async`, in order."""
    (_closures.beside if run_async else _closures.now).append(functools.partial(closure, *args))


def step() -> Any:
    """A block of code that begins and ends with a sync."""
    return compile()


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool | None = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: dict[str, Any] | None = None,
) -> Any:
    """`f`, or a block of code, as one program: there is a sync before and after it.

    f               a function, whose results are the same; None: a context manager is returned.
    full_graph      raise `UnsupportedError` if more than one program ran, as where a value is read within.
    max_different_graphs    raise it when more programs than this were compiled, over all calls.
    custom_compile_options  options of XLA for the block, by name.

    In eager mode the block is one program all the same. `name` is not used.
    `torch.compile(f, backend="pjrt")` is something else: it saves the cost of Python.
    """
    region = _Region(full_graph or False, max_different_graphs, custom_compile_options or {})
    if f is None:
        return region()

    @functools.wraps(f)
    def call(*args: Any, **options: Any) -> Any:
        with region():
            return f(*args, **options)

    return call


class _Region:
    """What `compile` knows of one function or block: how many programs it has made so far."""

    def __init__(self, whole: bool, most: int | None, options: dict[str, Any]) -> None:
        self._whole = whole
        self._most = most
        self._options = options
        self._compiled = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        sync()
        ran, compiled = counters.programs_run, counters.programs_compiled
        options = torch_pjrt.compile_options(**self._options) if self._options else nullcontext()
        with eager_mode_context(False), options:
            yield
            sync()
        self._compiled += counters.programs_compiled - compiled
        if self._whole and counters.programs_run - ran > 1:
            raise UnsupportedError(
                "The block is not one program.",
                saw=f"{counters.programs_run - ran} programs ran",
                expected="one, for `full_graph=True`",
                hint="`print(torch_pjrt.report())` names the lines that stopped for the device",
            )
        if self._most is not None and self._compiled > self._most:
            raise UnsupportedError(
                "The block has become too many programs.",
                saw=f"{self._compiled} programs were compiled for it",
                expected=f"at most {self._most}, by `max_different_graphs`",
                hint="`TORCH_PJRT_LOG=recompile` tells why each one was compiled",
            )


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed the device's random numbers; `torch.manual_seed` seeds the CPU's and the device's."""
    torch.get_device_module("pjrt").manual_seed(seed)
