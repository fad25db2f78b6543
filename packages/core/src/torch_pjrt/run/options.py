"""`torch_pjrt.compile_options()`: options of XLA for the programs of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_pjrt.options import Option
from torch_pjrt.run.request import sync
from torch_pjrt.settings import settings


@contextmanager
def compile_options(**options: Option) -> Iterator[None]:
    """What is recorded in the block is compiled with these options of XLA, over those in force.

    What was pending before is run first, what is pending at the end is run then. A program that was compiled
    with other options is another program. A name that the device's compiler does not know is a
    `CompileError` when the program is compiled. The options hold for all threads.

        >>> with torch_pjrt.compile_options(xla_cpu_enable_fast_math=True):
        ...     (torch.ones(2, device="pjrt") * 3).tolist()
        [3.0, 3.0]
    """
    sync()
    before = settings.compile_options
    settings.compile_options = {**before, **options}
    try:
        yield
        sync()
    finally:
        settings.compile_options = before
