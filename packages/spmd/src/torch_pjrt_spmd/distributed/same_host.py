"""Whether a process of this host lives, by `/proc`: other hosts' processes are known by their posts alone."""

from __future__ import annotations

import os
from functools import cache


@cache
def host_id() -> str:
    """Equal for processes that see each other's numbers; "" where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def began(pid: int) -> str:
    """When a process of this host began, in the system's ticks: another one may get its number."""
    found = _stat(pid)
    return found[19] if found else ""


def is_dead(pid: int, began_at: str) -> bool:
    """Whether the process is no more, though nobody may have waited for it yet."""
    found = _stat(pid)
    return not found or found[0] in "ZXx" or found[19] != began_at


def is_stopped(pid: int) -> bool:
    """Whether it was sent SIGSTOP, or is in a debugger's hands."""
    found = _stat(pid)
    return bool(found) and found[0] in "Tt"


def resident_bytes() -> int:
    """The host's memory that this process has; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _stat(pid: int) -> list[str]:
    """The fields from the third on (the second is a name, which may hold spaces); none for no process."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()
    except OSError:
        return []
