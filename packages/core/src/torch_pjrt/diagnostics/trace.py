"""`torch_pjrt.profile()`: a trace of a block that XProf, TensorBoard and Perfetto open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_pjrt.client.wait import wait
from torch_pjrt.observe import modules, phases
from torch_pjrt.run.sync import sync


class Steps:
    """Steps of a trace, numbered from 0. Each ends with an optimizer's step, or where `step()` is called."""

    def __init__(self) -> None:
        self._number = 0
        self._by_hand = False
        self._range = self._begun()

    def step(self) -> None:
        """End a step here. From the first call on, optimizers do so no longer."""
        self._by_hand = True
        self._next()

    def _after_optimizer(self, *unused: object) -> None:
        if not self._by_hand:
            self._next()

    def _next(self) -> None:
        self._end()
        self._number += 1
        self._range = self._begun()

    def _begun(self) -> jax.profiler.StepTraceAnnotation:
        annotation = jax.profiler.StepTraceAnnotation("step", step_num=self._number)
        annotation.__enter__()
        return annotation

    def _end(self) -> None:
        self._range.__exit__(None, None, None)


@contextmanager
def profile(folder: str | os.PathLike[str], *, python: bool = False) -> Iterator[Steps]:
    """Trace the block; the trace is written to `folder` when it ends, the device's work included.

    python  each Python function called is in the trace as well, which slows the program.

    In the timeline are the steps (`step`), our phases (`pjrt::sync`, `pjrt::launch`, ...), the modules that
    run (`GPT/blocks.3/attn`; that is where operators are recorded), and what XLA ran. What XLA ran has the
    names of modules where the program was compiled with source lines: within this block, or anywhere
    under `TORCH_PJRT_SOURCE_LINES=1`.

    Gives an object whose `step()` ends a step, for loops in which no optimizer or more than one does.
    Raises `RuntimeError` if a trace of this process is being taken already.

        >>> with torch_pjrt.profile("traces"):
        ...     y = (torch.ones(2, device="pjrt") + 1).tolist()  # or some steps of training
    """
    torch.pjrt.init()  # type: ignore[attr-defined]
    sync("profile()")
    wait()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(python)
    trace = jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options)
    with trace, _annotated():
        steps = Steps()
        hook = register_optimizer_step_post_hook(steps._after_optimizer)
        try:
            yield steps
        finally:
            hook.remove()
            steps._end()
            with phases.phase("last_sync"):
                sync("profile()")
                wait()


@contextmanager
def _annotated() -> Iterator[None]:
    """Modules and phases are ranges of JAX's trace, and programs are compiled with source lines."""
    from torch_pjrt.observe import lines

    modules.range_of = phases.range_of = jax.profiler.TraceAnnotation
    try:
        with lines.noted("profile()", in_programs=True):
            yield
    finally:
        modules.range_of = phases.range_of = None
