"""Which configuration of an autotuned kernel runs: the one that was fastest here, else the first.

Nothing is timed while a program is made. `triton_call(kernel).tune(...)` times all of them on the device at
hand and keeps the fastest in the table of measured blocks (`table.py`), by what Triton's own autotuner
goes by: the arguments that the kernel names in `key`, and the dtypes of its arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch_pjrt.plugin import client
from torch_pjrt_kernels import table

_tried: ContextVar[int | None] = ContextVar("configuration", default=None)


def tried() -> int | None:
    """The number of the configuration that a tuner tries now."""
    return _tried.get()


@contextmanager
def trying(number: int) -> Iterator[None]:
    """Within the block calls are recorded with this configuration."""
    token = _tried.set(number)
    try:
        yield
    finally:
        _tried.reset(token)


def chosen(kernel: Any, arguments: Mapping[str, Any]) -> int:
    """The number of the configuration that a kernel has for these arguments; 0 for one that has none."""
    if not hasattr(kernel, "configs"):
        return 0
    measured = table.entries().get(entry_of(kernel, arguments))
    known = [described(c) for c in kernel.configs]
    return known.index(measured) if measured in known else 0


def entry_of(kernel: Any, arguments: Mapping[str, Any]) -> str:
    """The name of a call's entry in the table, for the chip at work."""
    function = function_of(kernel)
    keys = " ".join(f"{name}={arguments.get(name)!r}" for name in kernel.keys)
    dtypes = " ".join(
        f"{name}:{dtype}"
        for name in function.arg_names
        if (dtype := getattr(arguments.get(name), "dtype", None)) is not None
    )
    name = f"{function.fn.__module__}.{function.fn.__qualname__}"
    return f"{client().chip.device_kind} triton {name} {keys} {dtypes}"


def described(configuration: Any) -> dict[str, Any]:
    """A configuration as JSON has it."""
    numbers = {
        name: getattr(configuration, name) for name in ("num_warps", "num_stages", "num_ctas")
    }
    return {**configuration.kwargs, **numbers}


def function_of(kernel: Any) -> Any:
    """The function of `@triton.jit` within others."""
    while not hasattr(kernel, "params") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel
