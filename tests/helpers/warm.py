"""Processes for tests that find PyTorch and JAX imported, which takes four of five seconds of CPU.

A process per pytest process imports the two, starts no device, and forks for each script. A script runs as
it would in a process of its own: it has its own environment, arguments, streams and end of the interpreter,
`import torch` loads this project then, and `torch` and `jax` are in `sys.modules` only once it imports them.

A test of importing itself (its order, its cost) takes a fresh process. A process is a fresh one also where a
variable that is `READ_EARLY` has another value than in this process, and where no fork is safe.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

# Beginnings of variables that the interpreter, libraries, PyTorch or JAX read when they start; and those of
# them that are read later, by this project or when a process group starts, or that are seen to here.
READ_EARLY = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "OMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "TORCH",
    "JAX_",
    "TF_",
)
READ_LATER = (
    *("PYTHONPATH", "TORCH_PJRT_", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCHELASTIC_"),
    *("JAX_COORDINATOR_", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
)
# Variables for each value of which there is a process that forks.
PARENTS = ("OMP_NUM_THREADS", "TORCH_CPP_LOG_LEVEL")
_HEADS = ("torch", "jax")
_LENGTH = struct.Struct("!i")
_parents: dict[str, _Parent] = {}


class Popen:
    """A process of `python FILE`, `python -c SCRIPT` or `python -m MODULE`, like one of `subprocess.Popen`.

    arguments    as they follow `python`.
    environment  all its variables.
    streams      of the process: files, or their numbers; None: those of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
    ) -> None:
        streams = [
            n if given is None else given if isinstance(given, int) else given.fileno()
            for n, given in enumerate((stdin, stdout, stderr))
        ]
        self.returncode: int | None = None
        self._end, theirs = os.pipe()
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "cwd": os.getcwd(),
        }
        try:
            self.pid = _parent(environment).fork(request, [*streams, theirs])
        finally:
            os.close(theirs)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, or minus the signal that ended it. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            status = os.read(self._end, _LENGTH.size)
            os.close(self._end)
            self.returncode = int(_LENGTH.unpack(status)[0]) if status else -signal.SIGKILL
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str], environment: Mapping[str, str], *, fresh: bool = False, **streams: Any
) -> Popen | subprocess.Popen[Any]:
    """A warm process, or a fresh one where that would differ."""
    if not fresh and _may_be_warm(arguments, environment):
        return Popen(arguments, environment, **streams)
    return subprocess.Popen([sys.executable, *arguments], env=dict(environment), **streams)


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    fresh: bool = False,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """What it printed, once it has ended. Raises `subprocess.TimeoutExpired` after it was killed."""
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        process = start(arguments, environment, fresh=fresh, stdin=nothing, stdout=out, stderr=err)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), err.read())


def _may_be_warm(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    option = arguments[0].startswith("-") and arguments[0] not in ("-c", "-m")
    return sys.platform == "linux" and not option and _kind(environment) is not None


def _kind(environment: Mapping[str, str]) -> str | None:
    """Which parent it takes, as the values of `PARENTS`; None: more differs from this process."""
    differ = {
        name
        for name in {*environment, *os.environ}
        if name.startswith(READ_EARLY) and not name.startswith(READ_LATER)
        if environment.get(name) != os.environ.get(name)
    }
    return str([environment.get(name) for name in PARENTS]) if differ <= {*PARENTS} else None


class _Parent:
    """The process that imports and forks; it ends when this one does."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            )
        atexit.register(self.stop)

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        """The number of a process that does what the request says, with these streams, and the end's pipe."""
        text = json.dumps(request).encode()
        socket.send_fds(self._socket, [_LENGTH.pack(len(text))], files)
        self._socket.sendall(text)
        return _LENGTH.unpack(_received(self._socket, _LENGTH.size))[0]

    def stop(self) -> None:
        self._socket.close()
        self._process.wait()


def _parent(environment: Mapping[str, str]) -> _Parent:
    kind = _kind(environment)
    assert kind is not None
    if kind not in _parents:
        _parents[kind] = _Parent(environment)
    return _parents[kind]


def _received(connection: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        if not (more := connection.recv(n_bytes - len(data))):
            raise EOFError
        data += more
    return data


# What follows runs in the process that forks, and in those that it makes.


class _Hidden(MetaPathFinder, Loader):
    """Modules that are loaded and not yet imported, as far as the script can see."""

    def __init__(self, names: Sequence[str]) -> None:
        self._modules = {name: sys.modules.pop(name) for name in names}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self._modules else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = self._modules[spec.name]
        self._spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        del self._modules[module.__name__]
        if (
            module.__name__ == "torch"
            and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
        ):
            module._import_device_backends()


def _requests(connection: socket.socket) -> Iterator[list[str]]:
    """In a process that was forked, its arguments; in the parent nothing, once the tests have ended."""
    ends: dict[int, int] = {}
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *given: None)
    while True:
        ready, _, _ = select.select([connection, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _tell(ends)
        if connection not in ready:
            continue
        head, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 4)
        if not head:
            return
        request = json.loads(_received(connection, _LENGTH.unpack(head)[0]))
        if number := os.fork():
            ends[number] = files.pop()
            for file in files:
                os.close(file)
            connection.sendall(_LENGTH.pack(number))
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for n, file in enumerate(files[:3]):
            os.dup2(file, n)
        os.closerange(3, max([*files, connection.fileno(), wake, woken, *ends.values()]) + 1)
        connection.detach()
        yield _as_asked(request)
        return


def _tell(ends: dict[int, int]) -> None:
    """Those that have ended, to who waits for them."""
    while ends:
        number, status = os.waitpid(-1, os.WNOHANG)
        if not number:
            return
        end = ends.pop(number)
        with contextlib.suppress(BrokenPipeError):
            os.write(end, _LENGTH.pack(os.waitstatus_to_exitcode(status)))
        os.close(end)


def _as_asked(request: dict[str, Any]) -> list[str]:
    """Set what the interpreter has from its start. Gives the arguments."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    arguments: list[str] = request["arguments"]
    first = arguments[0]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    folders: dict[str, str] = {"-c": "", "-m": os.getcwd()}
    folder = folders.get(first, os.path.dirname(os.path.abspath(first)))
    others = [path for path in sys.path[1:] if path not in before]
    sys.path[:] = [folder, *given, *others]
    sys.argv[:] = [first, *arguments[2:]] if first in ("-c", "-m") else arguments
    sys.meta_path.insert(0, _Hidden(_HEADS))
    return arguments


def _run(arguments: list[str]) -> None:
    """As the interpreter runs a script."""
    first = arguments[0]
    if first == "-m":
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if first != "-c":
        main.__file__ = first
    text = arguments[1] if first == "-c" else Path(first).read_text()
    try:
        exec(compile(text, main.__dict__.get("__file__", "<string>"), "exec"), main.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        below = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(below), below)
        sys.exit(1)


if __name__ == "__main__":
    import jax  # noqa: F401
    import torch._dynamo  # noqa: F401

    gc.freeze()  # what is there now is looked at by no collection, nor copied for it
    for asked in _requests(socket.socket(fileno=int(sys.argv[1]))):
        _run(asked)
