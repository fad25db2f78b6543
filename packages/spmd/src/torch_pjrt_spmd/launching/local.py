"""`launch`: a function in several processes of this machine, from a notebook or a script."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from datetime import timedelta
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from torch_pjrt_spmd.launching.passing import (
    Failure,
    LaunchError,
    cloudpickle,
    error_of,
    first_of,
    packed_call,
)
from torch_pjrt_spmd.launching.worker import FAILURE, IMPORTING, RESULT, Task

_LOOK_SECONDS = 0.05
# After the first failure: how long others may take to say that they failed before; then, to end.
_WORDS_SECONDS, _END_SECONDS = 1.0, 5.0


def launch(
    fn: Callable[..., Any],
    nprocs: int,
    args: tuple[Any, ...] = (),
    *,
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call `fn(*args)` in `nprocs` new processes of this machine; what each returned, by rank.

    fn           may be defined in a notebook or a script, if cloudpickle is installed; else a function of a
                 module, or of a script that calls `launch` under `if __name__ == "__main__":`.
    environment  variables for the processes, over those of this one.

    Each process has RANK, WORLD_SIZE, LOCAL_RANK and the other variables that torchrun sets, so that
    `init_process_group("pjrt")` makes them one run. What they print appears here, each line with its rank.
    Tensors in arguments and results are passed on the host.

    Raises `LaunchError` where a process fails, with its rank and traceback; its exception is the cause. The
    others are ended then, as on Ctrl-C, with all that they have started.
    """
    if nprocs < 1:
        raise LaunchError("A launch has one process at least.", saw=f"nprocs={nprocs}")
    if IMPORTING in os.environ:
        raise LaunchError(
            "`launch` is called by the script while the processes of a launch import it.",
            hint='call it under `if __name__ == "__main__":`, or `pip install cloudpickle`',
        )
    call = packed_call(fn, args)
    with _store() as port, tempfile.TemporaryDirectory(prefix="torch-pjrt-launch-") as folder:
        ranks = _Ranks(Path(folder), nprocs)
        try:
            for rank in range(nprocs):
                variables = {**os.environ, **_variables(rank, nprocs, port), **(environment or {})}
                ranks.start(variables, call, _script(fn))
            return ranks.results()
        finally:
            ranks.end()


@contextlib.contextmanager
def _store() -> Any:
    """The port of the store by which the processes find each other. It outlives each of them."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, None, True, timedelta(minutes=5), wait_for_workers=False)
    yield store.port
    del store


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun would set."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "PJRT_STORE_KEEPER": "the process that called launch",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _script(fn: Callable[..., Any]) -> dict[str, Any] | None:
    """What makes a script's names known in another process, where they do not go with the function."""
    if cloudpickle() is not None or getattr(fn, "__module__", None) != "__main__":
        return None
    said = spawn.get_preparation_data("launched")
    if not {"init_main_from_path", "init_main_from_name"} & said.keys():
        raise LaunchError(
            f"The function `{fn.__qualname__}` is defined in a notebook, or typed in.",
            hint="`pip install cloudpickle`, or put the function into a module that can be imported",
        )
    wanted = ("sys_argv", "orig_dir", "dir", "init_main_from_path", "init_main_from_name")
    return {name: said[name] for name in wanted if name in said}


class _Ranks:
    """The processes of a launch, each the leader of a process group of its own."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []
        self._printers: list[threading.Thread] = []

    def start(self, variables: Mapping[str, str], call: bytes, script: Any) -> None:
        """The next one."""
        rank = len(self._processes)
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "torch_pjrt_spmd.launching.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**variables, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
            start_new_session=True,
        )
        self._processes.append(process)
        assert process.stdin is not None and process.stdout is not None
        sign = f"[{rank}] " if self._count > 1 else ""
        printer = threading.Thread(
            target=_print_lines, args=(process.stdout, sign, sys.stdout), daemon=True
        )
        printer.start()
        self._printers.append(printer)
        task = Task(call, script, tuple(sys.path), str(self._folder / str(rank)))
        data = pickle.dumps(astuple(task))
        with contextlib.suppress(BrokenPipeError):  # it has died: `results` says so
            process.stdin.write(len(data).to_bytes(8, "big") + data)
            process.stdin.flush()

    def results(self) -> list[Any]:
        """What each returned, once all have ended; `LaunchError` as soon as one has failed."""
        while True:
            ended = [process.poll() for process in self._processes]
            if any(code for code in ended):
                raise error_of(first_of(self._failures()), self._count)
            if all(code is not None for code in ended):
                break
            time.sleep(_LOOK_SECONDS)
        self._end_printers()
        data = [(self._folder / f"{rank}{RESULT}").read_bytes() for rank in range(self._count)]
        return [pickle.loads(one) for one in data]

    def end(self) -> None:
        """End all that run, and what they have started."""
        _signal(self._processes, signal.SIGTERM)
        last = time.monotonic() + _END_SECONDS
        while time.monotonic() < last and any(p.poll() is None for p in self._processes):
            time.sleep(_LOOK_SECONDS)
        _signal(self._processes, signal.SIGKILL)
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        self._end_printers()

    def _failures(self) -> list[Failure]:
        """Of those that have failed; who fails because of another may have been seen before that one."""
        seen: dict[int, Failure] = {}
        last = time.monotonic() + _WORDS_SECONDS
        while time.monotonic() < last and all(failure.is_result for failure in seen.values()):
            for rank, process in enumerate(self._processes):
                if rank not in seen and process.poll():
                    seen[rank] = self._failure(rank, process.returncode)
            time.sleep(_LOOK_SECONDS)
        return list(seen.values())

    def _failure(self, rank: int, code: int) -> Failure:
        said = self._folder / f"{rank}{FAILURE}"
        if said.exists():
            return pickle.loads(said.read_bytes())
        return Failure(rank, time.monotonic(), _end_in_words(code), "")

    def _end_printers(self) -> None:
        for printer in self._printers:
            printer.join(1.0)


def _end_in_words(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}, without an exception"
    try:
        return f"it was ended by the signal {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by the signal {-code}"


def _signal(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """To each process and all of its group; a group may outlive its leader."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _print_lines(source: Any, sign: str, target: Any) -> None:
    lines = io.TextIOWrapper(source, errors="replace", newline="")
    with lines, contextlib.suppress(ValueError, OSError):  # one end is closed
        for line in lines:
            target.write(sign + line)
            target.flush()
