"""By which name the other processes of a run reach this host."""

from __future__ import annotations

import socket
from typing import Any

from torch._C._distributed_c10d import PrefixStore

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def own_address(store: Any) -> str:
    """The name or number of this host, for who has reached the store.

    Where the store is on this host, the others know a name of it already: the store's. Else it is the number
    that this host has on the way to the store. A host's own name may be known to nobody else.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", 0)
    if not host:  # a store of files, or one within a process
        return _number_on_the_way_to("192.0.2.1", 9)
    if host in _LOOPBACK:
        return "127.0.0.1"
    return host if _is_here(host) else _number_on_the_way_to(host, port)


def _is_here(host: str) -> bool:
    """Whether a name is that of this host: then one can listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as one:
            one.bind(address)
    except OSError:
        return False
    return True


def _number_on_the_way_to(host: str, port: int) -> str:
    """Nothing is sent: a connection without a handshake only chooses the way."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port or 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as one:
            one.connect(address)
            return one.getsockname()[0]
    except OSError:
        return "127.0.0.1"
