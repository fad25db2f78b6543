"""`torch_xla.debug.profiler` (`xp`): traces of host and device, by JAX's profiler."""

from __future__ import annotations

from typing import Any

from torch_xla.absent import absent

_HERE = "`start_trace(folder)` and `stop_trace()`, or the block `torch_pjrt.profile(folder)`"
__getattr__ = absent(
    __name__,
    {
        "trace": _HERE,
        "trace_detached": _HERE,
    },
)


def start_server(port: int, only_on_master: bool = True) -> Any:
    """A server from which XProf and TensorBoard take traces of this process, while the object lives."""
    import jax

    return jax.profiler.start_server(port)


def start_trace(log_dir: str) -> None:
    """Trace from now on, until `stop_trace`, which writes it into the folder."""
    import jax

    jax.profiler.start_trace(log_dir)


def stop_trace() -> None:
    """End the trace and write it."""
    import jax

    jax.profiler.stop_trace()


class Trace:
    """A block of code with a name in traces."""

    def __init__(self, name: str, **details: Any) -> None:
        self._name, self._details = name, details

    def __enter__(self) -> Trace:
        import jax

        self._block = jax.profiler.TraceAnnotation(self._name, **self._details)
        self._block.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)


class StepTrace(Trace):
    """A step of training in traces: `StepTrace("step", step_num=3)`. It ends with a sync."""

    def __exit__(self, *error: Any) -> None:
        from torch_xla.steps import sync

        sync()
        super().__exit__(*error)


def trace_me(scope: str) -> Any:
    """A decorator: calls of the function have the name `scope` in traces."""

    def around(function: Any) -> Any:
        import functools

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with Trace(scope):
                return function(*args, **options)

        return call

    return around
