"""The device's memory: what is in use, what was in use at most, and what holds it.

A device that keeps statistics is asked. For others (the CPU) the arrays that are alive are counted, each
piece of memory once, whoever made them: a user's own JAX arrays on the device are among them. Each chip has
an account of its own; where none is named, the one with the most in use is meant. Nothing is counted while
operators are recorded. A peak is looked for after launches (the 1st, 2nd, 4th, 8th, ... of each
program since the last reset; every one while memory is traced) and after large uploads. What a program needs
for itself comes on top.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import jax
import torch

from torch_pjrt import dtypes
from torch_pjrt.client import client as running
from torch_pjrt.client.client import client
from torch_pjrt.client.failed import is_there_at_last
from torch_pjrt.client.live import address_of, live_parts
from torch_pjrt.client.stack_elements import whole
from torch_pjrt.errors import DeviceFull
from torch_pjrt.observe.tables import readable
from torch_pjrt.observe.value_lines import made
from torch_pjrt.session import session
from torch_pjrt.settings import settings

# An upload of so many bytes takes longer than looking does.
_LARGE_UPLOAD = 1 << 20
_MOST_LISTED = 10
_FREE = "SC_AVPHYS_PAGES"
# The second is said of a program that was given what an earlier one had no room for, the third where a
# library of the CPU's has no room for what it keeps within an operation of its own.
_NO_ROOM = ("RESOURCE_EXHAUSTED", "Out of memory allocating", "YNNPACK operation failed")


class OutOfMemory(DeviceFull, torch.OutOfMemoryError):
    """The device had no room: a `torch.OutOfMemoryError` that lists what holds the memory.

    The tensors that the program would have made are lost; those that it would have written to are as before.
    """


class Program(Protocol):
    """What is launched (`compile/programs.py`): `launches`, `resets` and `needs` are kept here."""

    compiled: Any
    launches: int
    resets: int
    needs: int | None
    chips: Sequence[Any]


@dataclass(slots=True)
class Peak:
    """The most that was seen since the last reset, and how often there was no room at all.

    seen    bytes on each chip, by our looks.
    around  bytes in use beside a program when it was launched, at most, on each chip on which it runs. What
            it needs for itself is asked for when somebody wants to know: XLA needs a tenth of a second.
    device  each chip's own peak at the reset: once it has grown, it is what counts.
    resets  how many there were; a program looked at before the last one is looked at anew.
    """

    seen: dict[int, int] = field(default_factory=dict)
    around: WeakKeyDictionary[Program, dict[int, int]] = field(default_factory=WeakKeyDictionary)
    device: dict[int, int] = field(default_factory=dict)
    resets: int = 0
    exhaustions: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """Arrays alike: how many, the bytes of all, dtype and shape, and the line that made them."""

    count: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    maker: str | None

    def __str__(self) -> str:
        times = f"{self.count} x " if self.count > 1 else ""
        made = f"  made at {self.maker}" if self.maker else ""
        return f"{readable(self.nbytes):>11}  {times}{self.dtype}{list(self.shape)}{made}"


_peak = session.own("the most memory in use", Peak())


def statistics(chip: int | None = None) -> dict[str, int]:
    """What a chip (the first one) says of its memory, by PJRT's names; empty where it says nothing."""
    if not client().capabilities.memory_statistics:
        return {}
    try:
        found = (client().chips or (client().chip,))[chip or 0].memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # many plugins have none
        return {}
    return {str(name): int(n) for name, n in (found or {}).items()}


def in_use_by_chip() -> list[int]:
    """Bytes in use now on each chip."""
    known = [statistics(chip).get("bytes_in_use") for chip in _chips()]
    if None not in known:
        return [n or 0 for n in known]
    found = [0] * len(known)
    for _, chip, nbytes in live_parts():
        found[chip] += nbytes
    return [counted if n is None else n for n, counted in zip(known, found, strict=True)]


def in_use(chip: int | None = None) -> int:
    """Bytes in use now."""
    found = in_use_by_chip()
    return max(found) if chip is None else found[chip]


def peak(chip: int | None = None) -> int:
    """The most bytes in use since the last reset, as far as was looked."""
    _see(in_use_by_chip())
    for program, around in list(_peak.around.items()):
        if program.needs is None:
            program.needs = own_needs(program.compiled)
        for number, nbytes in around.items():
            _peak.seen[number] = max(_peak.seen[number], nbytes + program.needs)
    return max(_peak_of(number) for number in (_chips() if chip is None else (chip,)))


def _peak_of(chip: int) -> int:
    device = statistics(chip).get("peak_bytes_in_use", 0)
    seen = _peak.seen[chip]
    return max(seen, device) if device > _peak.device.get(chip, 0) else seen


def reset_peak() -> None:
    """Forget the peaks: what is in use now is the most."""
    for chip in _chips():
        _peak.device[chip] = statistics(chip).get("peak_bytes_in_use", 0)
    _peak.resets += 1
    _peak.around.clear()
    _peak.seen.clear()
    _see(in_use_by_chip())


def exhaustions() -> int:
    """How often the device had no room."""
    return _peak.exhaustions


def total(chip: int | None = None) -> int:
    """Bytes of memory that a chip has: its limit, or the host's memory where nobody says one."""
    known = statistics(chip).get("bytes_limit", client().capabilities.memory_bytes)
    return _of_host("SC_PHYS_PAGES") if known is None else known


def free(chip: int | None = None) -> int:
    """Bytes that could still be had."""
    if chip is None:
        return min(free(number) for number in _chips()) if _says_limit() else _of_host(_FREE)
    found = statistics(chip)
    if "bytes_limit" in found and "bytes_in_use" in found:
        return found["bytes_limit"] - found["bytes_in_use"]
    if (limit := client().capabilities.memory_bytes) is not None:
        return max(limit - in_use(chip), 0)
    return _of_host(_FREE)


def free_bytes() -> int:
    """Bytes that a program may have at most: what the device has left, or what the host would ever give."""
    if _says_limit():
        return free()
    return min(_of_host("SC_PHYS_PAGES") or sys.maxsize, _left_of_address_space())


def _says_limit() -> bool:
    return "bytes_limit" in statistics() or client().capabilities.memory_bytes is not None


def _chips() -> range:
    return range(len(client().chips) or 1)


def launched(program: Program) -> None:
    """Called after each launch: looks for a peak now and then."""
    if program.resets != _peak.resets:
        program.resets = _peak.resets
        program.launches = 0
    program.launches = n = program.launches + 1
    if n & (n - 1) and not settings.trace_memory:
        return
    now = in_use_by_chip()
    around = _peak.around.setdefault(program, {})
    runs_on = [n for n, chip in enumerate(client().chips) if chip in program.chips] or [0]
    for number in runs_on:
        around[number] = max(around.get(number, 0), now[number])


def uploaded(nbytes: int) -> None:
    """Called after each upload."""
    if nbytes >= _LARGE_UPLOAD:
        _see(in_use_by_chip())


def all_needs(compiled: Any) -> int:
    """Bytes that a launch takes beside its inputs, results included; 0 if the program cannot say."""
    try:
        found = compiled.memory_analysis()
        made = found.output_size_in_bytes - found.alias_size_in_bytes
        return int(found.temp_size_in_bytes + max(made, 0))
    except (AttributeError, NotImplementedError, jax.errors.JaxRuntimeError):
        return 0


def own_needs(compiled: Any) -> int:
    """Bytes that a compiled program needs while it runs beside its inputs and outputs; 0 if it cannot say."""
    try:
        return int(compiled.memory_analysis().temp_size_in_bytes)
    except (AttributeError, NotImplementedError, jax.errors.JaxRuntimeError):
        return 0


def holdings() -> list[Holding]:
    """What holds the memory of the fullest chip, the largest first; arrays of one look and maker together."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    noted = [(whole(array), line) for array, line in made()]
    for array, _ in noted:  # one that comes in while we look would have two addresses
        is_there_at_last(array)
    made_at = {address_of(array): line for array, line in noted}
    parts = list(live_parts())
    fullest = _fullest(parts)
    for array, chip, nbytes in parts:
        if chip == fullest:
            line = made_at.get(address_of(array))
            groups[str(array.dtype), array.shape, line].append(nbytes)
    found = [
        Holding(len(sizes), sum(sizes), dtype, shape, maker)
        for (dtype, shape, maker), sizes in groups.items()
    ]
    return sorted(found, key=lambda h: -h.nbytes)


def _fullest(parts: Iterable[tuple[jax.Array, int, int]]) -> int:
    """The number of the chip with the most bytes."""
    found = [0] * len(_chips())
    for _, chip, nbytes in parts:
        found[chip] += nbytes
    return found.index(max(found))


def listing(holds: Sequence[Holding]) -> str:
    """The largest of them, one to a line, and how many more there are."""
    lines = [str(h) for h in holds[:_MOST_LISTED]]
    rest = holds[_MOST_LISTED:]
    if rest:
        n = sum(h.count for h in rest)
        lines.append(f"{readable(sum(h.nbytes for h in rest)):>11}  in {n} smaller ones")
    return "\n".join(lines)


def summary() -> str:
    """Use, peak and what holds the memory, as text for a person; of several chips, each one's."""
    holds = holdings()
    head = [f"Memory of `{client().device.name}` ({client().chip.device_kind})"]
    if len(_chips()) == 1:
        rows = [
            ("in use", in_use()),
            ("at most since the last reset", peak()),
            ("free", free()),
            ("in all", total()),
        ]
        head += [f"{readable(n):>11}  {name}" for name, n in rows]
        head.append("held by")
    else:
        now = in_use_by_chip()
        head.append(f"{'in use':>11} {'at most':>11} {'free':>11} {'in all':>11}")
        for chip in _chips():
            sizes = (now[chip], peak(chip), free(chip), total(chip))
            head.append(" ".join(f"{readable(n):>11}" for n in sizes) + f"  chip {chip}")
        head.append(f"held on chip {now.index(max(now))} by")
    return "\n".join([*head, listing(holds) or "             nothing"])


def raise_if_exhausted(error: Exception, doing: str) -> None:
    """Raise `OutOfMemory` for an error by which XLA says that there is no room; `doing` says when."""
    text = str(error)
    if any(words in text for words in _NO_ROOM):
        raise _out_of_memory(error, doing) from error


def _out_of_memory(error: BaseException, doing: str) -> OutOfMemory:
    _peak.exhaustions += 1
    holds = holdings()
    hint = "make the batch smaller, or `del` what is not needed"
    if not settings.trace_memory:
        hint += "; TORCH_PJRT_TRACE_MEMORY=1 tells which line made what"
    listed = "\n".join("    " + line for line in listing(holds).splitlines())
    return OutOfMemory(
        f"The device `{client().device.name}` ran out of memory {doing}: "
        f"{readable(sum(h.nbytes for h in holds))} are held.",
        saw=str(error).strip().partition("\n")[0] + ("\n" + listed if listed else ""),
        hint=hint,
    )


def supported_dtypes() -> set[torch.dtype]:
    """The dtypes in which tensors can be made."""
    every = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
    return {d for d in every if dtypes.is_supported(d)}


def _of_host(pages: str) -> int:
    """Bytes of the host's memory; 0 where the system does not tell."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _left_of_address_space() -> int:
    """Bytes that this process may still map, where it has a limit (`ulimit -v`)."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return sys.maxsize
        with open("/proc/self/statm") as pages:
            return limit - int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return sys.maxsize


def _see(by_chip: Sequence[int]) -> None:
    for chip, nbytes in enumerate(by_chip):
        _peak.seen[chip] = max(_peak.seen.get(chip, 0), nbytes)


running.raise_if_exhausted = raise_if_exhausted
