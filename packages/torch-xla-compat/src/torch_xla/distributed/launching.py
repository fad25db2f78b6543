"""`torch_xla.launch` and `xmp.spawn`: a function in a process for each chip."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

import torch_pjrt_spmd
from torch_pjrt.errors import UnsupportedError
from torch_xla import process_groups, runtime

CHIPS = "CPU_NUM_DEVICES"  # how many processes a CPU gets


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Call `fn(index, *args)` in a process for each chip; under torchrun in this process, with LOCAL_RANK.

    debug_single_process    call it here, with index 0.

    Raises `UnsupportedError` under `runtime.use_spmd()`, and what `spawn` raises.
    """
    if runtime.is_spmd():
        raise UnsupportedError(
            "A process that drives all chips starts no others.",
            saw="launch() after use_spmd()",
            hint="call the function itself",
        )
    if dist.is_torchelastic_launched():
        process_groups.join()
        fn(process_groups.local_rank(), *args)
    else:
        spawn(fn, args, 1 if debug_single_process else None)


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Call `fn(index, *args)` in `nprocs` processes of this machine; in this one, if it is 1.

    nprocs  None: one for each chip. A CPU has as many as the variable CPU_NUM_DEVICES says, or one.

    Returns when all have ended. Raises `torch_pjrt_spmd.LaunchError` where one fails, with its traceback, and
    `UnsupportedError` for `join=False`.
    """
    if not join:
        raise UnsupportedError(
            "Processes are waited for.", saw="join=False", hint="call it on a thread of your own"
        )
    count = _chips() if nprocs is None else nprocs
    if count == 1:
        fn(0, *args)
    else:
        torch_pjrt_spmd.launch(_Call(fn), count, args)


class _Call:
    """The function, with the number of the process before its arguments."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self.__module__ = (
            getattr(fn, "__module__", None) or __name__
        )  # `launch` looks where it is from
        self.__qualname__ = getattr(fn, "__qualname__", "fn")

    def __call__(self, *args: Any) -> None:
        process_groups.join()
        self._fn(process_groups.local_rank(), *args)


def _chips() -> int:
    """How many chips this machine has. On a CPU nothing is started; elsewhere another process counts them."""
    if os.environ.get("PJRT_DEVICE", "").upper() == "CPU" or CHIPS in os.environ:
        return int(os.environ.get(CHIPS, "1"))
    return _counted()


def _counted() -> int:
    """Counted by a process that ends, for a device that is started here cannot be shared with others."""
    import subprocess
    import sys

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from torch_xla import runtime; print(runtime.addressable_runtime_device_count())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])
