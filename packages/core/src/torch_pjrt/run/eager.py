"""Eager mode: each operator runs at once, so that its result, or its error, is there at its line. Slow.

    with torch_pjrt.eager():
        ...

It is a dispatch mode of PyTorch's, which costs nothing outside of the block. `TORCH_PJRT_EAGER=1` wraps the
kernels when they are registered instead: for all threads, to the end of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from torch_pjrt.client.wait import wait
from torch_pjrt.graph.tape import state
from torch_pjrt.run.deferred_checks import look
from torch_pjrt.run.sync import sync


@contextmanager
def eager() -> Iterator[None]:
    """Within the block, on this thread, each operator runs and is waited for before the next Python line.

    For debugging: an error that lazy execution raises at the next sync is raised by the operator at fault.
    Each operator is a program of its own, compiled when it is first met.

        >>> with torch_pjrt.eager():
        ...     y = torch.ones(2, device="pjrt") + 1  # has run before the next line
    """
    sync("eager mode begins")
    with _EachAtOnce():
        yield


def at_once(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, and then what it has recorded is run."""

    @wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        _run_now()
        return result

    return run


class _EachAtOnce(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        _run_now()
        return result


def _run_now() -> None:
    tape = state.tape
    if tape.code and not tape.nested:
        sync("eager mode")
        wait()
        look(wait=True)
