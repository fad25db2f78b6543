"""A connection to the coordinator that does not end for this process when the coordinator does.

JAX's client ends its process where the connection to its coordinator breaks: `LOG(FATAL)`, which no Python
code can catch. So it connects to a port of this process, behind which threads pass the bytes on. Where the
far end goes away, the near end stays open and silent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from torch_pjrt.session import session

# The ends of connections that have broken: open as long as the process lives.
_silent: list[socket.socket] = session.own("connections to coordinators that have gone", [])


def steady_line(host: str, port: int, timeout: float) -> int:
    """A port on this host's loopback, whose bytes go to `host:port` and back.

    timeout   how long it is tried to reach `host:port`, in seconds.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            far = _connected(host, port, timeout)
            if far is None:
                _silent.append(near)
                continue
            _start(lambda near=near, far=far: _pass_on(near, far))
            _start(lambda near=near, far=far: _pass_back(far, near))

    _start(serve)
    return int(listener.getsockname()[1])


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="torch_pjrt coordinator", daemon=True).start()


def _connected(host: str, port: int, timeout: float) -> socket.socket | None:
    """A connection; who serves it may not have started yet."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            far = socket.create_connection((host, port), timeout=timeout)
        except OSError:
            time.sleep(0.05)
            continue
        far.settimeout(None)
        return far
    return None


def _pass_on(near: socket.socket, far: socket.socket) -> None:
    """What the process sends, until it closes."""
    with contextlib.suppress(OSError):
        while data := near.recv(65536):
            far.sendall(data)
        far.close()


def _pass_back(far: socket.socket, near: socket.socket) -> None:
    """What the coordinator sends, until it is gone: from then on, silence."""
    with contextlib.suppress(OSError):
        while data := far.recv(65536):
            near.sendall(data)
    _silent.append(near)
