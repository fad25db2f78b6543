"""The device's memory: what is in use, what was in use at most, and what holds it.

A device that keeps statistics is asked. For others (the CPU) the arrays that are alive are counted, each
piece of memory once, whoever made them: a user's own JAX arrays on the device are among them. Nothing is
counted while operators are recorded. A peak is looked for after launches (the 1st, 2nd, 4th, 8th, ... of each
program since the last reset; every one while memory is traced) and after large uploads. What a program needs
for itself comes on top.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import jax
import torch

from torch_pjrt import dtypes
from torch_pjrt.client import client as running
from torch_pjrt.client.client import client
from torch_pjrt.client.failed import has_failed, is_there, is_there_at_last
from torch_pjrt.client.stack_elements import whole
from torch_pjrt.errors import DeviceFull
from torch_pjrt.observe.tables import readable
from torch_pjrt.observe.value_lines import made
from torch_pjrt.session import session
from torch_pjrt.settings import settings

# An upload of so many bytes takes longer than looking does.
_LARGE_UPLOAD = 1 << 20
_MOST_LISTED = 10
# The second is said of a program that was given what an earlier one had no room for, the third where a
# library of the CPU's has no room for what it keeps within an operation of its own.
_NO_ROOM = ("RESOURCE_EXHAUSTED", "Out of memory allocating", "YNNPACK operation failed")


class OutOfMemory(DeviceFull, torch.OutOfMemoryError):
    """The device had no room: a `torch.OutOfMemoryError` that lists what holds the memory.

    The tensors that the program would have made are lost; those that it would have written to are as before.
    """


class Program(Protocol):
    """What is launched (`compile/programs.py`): the last three are kept here."""

    compiled: Any
    launches: int
    resets: int
    needs: int | None


@dataclass(slots=True)
class Peak:
    """The most that was seen since the last reset, and how often there was no room at all.

    seen    bytes, by our looks.
    around  bytes in use beside a program when it was launched, at most. What it needs for itself is asked for
            when somebody wants to know: XLA takes a tenth of a second to say.
    device  the device's own peak at the reset: once it has grown, it is what counts.
    resets  how many there were; a program looked at before the last one is looked at anew.
    """

    seen: int = 0
    around: WeakKeyDictionary[Program, int] = field(default_factory=WeakKeyDictionary)
    device: int = 0
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


def statistics() -> dict[str, int]:
    """What the device says of its memory, by PJRT's names; empty where it says nothing."""
    if not client().capabilities.memory_statistics:
        return {}
    try:
        found = client().chip.memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # many plugins have none
        return {}
    return {str(name): int(n) for name, n in (found or {}).items()}


def in_use() -> int:
    """Bytes in use now."""
    known = statistics().get("bytes_in_use")
    return sum(n for _, n in live_arrays()) if known is None else known


def peak() -> int:
    """The most bytes in use since the last reset, as far as was looked."""
    _see(in_use())
    for program, nbytes in list(_peak.around.items()):
        if program.needs is None:
            program.needs = own_needs(program.compiled)
        _see(nbytes + program.needs)
    device = statistics().get("peak_bytes_in_use", 0)
    return max(_peak.seen, device) if device > _peak.device else _peak.seen


def reset_peak() -> None:
    """Forget the peak: what is in use now is the most."""
    _peak.device = statistics().get("peak_bytes_in_use", 0)
    _peak.resets += 1
    _peak.around.clear()
    _peak.seen = in_use()


def exhaustions() -> int:
    """How often the device had no room."""
    return _peak.exhaustions


def total() -> int:
    """Bytes of memory that there are: the device's limit, or the host's memory where nobody says one."""
    known = statistics().get("bytes_limit", client().capabilities.memory_bytes)
    return _of_host("SC_PHYS_PAGES") if known is None else known


def free() -> int:
    """Bytes that could still be had."""
    found = statistics()
    if "bytes_limit" in found and "bytes_in_use" in found:
        return found["bytes_limit"] - found["bytes_in_use"]
    if (limit := client().capabilities.memory_bytes) is not None:
        return max(limit - in_use(), 0)
    return _of_host("SC_AVPHYS_PAGES")


def free_bytes() -> int:
    """Bytes that a program may have at most: what the device has left, or what the host would ever give."""
    if "bytes_limit" in statistics() or client().capabilities.memory_bytes is not None:
        return free()
    return min(_of_host("SC_PHYS_PAGES") or sys.maxsize, _left_of_address_space())


def launched(program: Program) -> None:
    """Called after each launch: looks for a peak now and then."""
    if program.resets != _peak.resets:
        program.resets = _peak.resets
        program.launches = 0
    program.launches = n = program.launches + 1
    if n & (n - 1) and not settings.trace_memory:
        return
    _peak.around[program] = max(_peak.around.get(program, 0), in_use())


def uploaded(nbytes: int) -> None:
    """Called after each upload."""
    if nbytes >= _LARGE_UPLOAD:
        _see(in_use())


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


def live_arrays() -> Iterator[tuple[jax.Array, int]]:
    """Each array alive on the device with the bytes that it has there; memory shared by several once.

    What failed has none.
    """
    chip = client().chip
    seen: set[Any] = set()
    for array in chip.client.live_arrays():
        if array.is_deleted() or chip not in array.sharding.device_set or has_failed(array):
            continue
        try:
            parts = [
                (_address(part), part.on_device_size_in_bytes()) for part in _parts(array, chip)
            ]
        except RuntimeError:  # another thread has deleted it
            continue
        for key, nbytes in parts:
            if key not in seen:
                seen.add(key)
                yield array, nbytes


def holdings() -> list[Holding]:
    """What holds the device's memory, the largest first; arrays of one look and one maker together."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    noted = [(whole(array), line) for array, line in made()]
    for array, _ in noted:  # one that comes in while we look would have two addresses
        is_there_at_last(array)
    made_at = {_address(array): line for array, line in noted}
    for array, nbytes in live_arrays():
        groups[str(array.dtype), array.shape, made_at.get(_address(array))].append(nbytes)
    found = [
        Holding(len(sizes), sum(sizes), dtype, shape, maker)
        for (dtype, shape, maker), sizes in groups.items()
    ]
    return sorted(found, key=lambda h: -h.nbytes)


def listing(holds: Sequence[Holding]) -> str:
    """The largest of them, one to a line, and how many more there are."""
    lines = [str(h) for h in holds[:_MOST_LISTED]]
    rest = holds[_MOST_LISTED:]
    if rest:
        n = sum(h.count for h in rest)
        lines.append(f"{readable(sum(h.nbytes for h in rest)):>11}  in {n} smaller ones")
    return "\n".join(lines)


def summary() -> str:
    """Use, peak and what holds the memory, as text for a person."""
    holds = holdings()
    rows = [
        ("in use", in_use()),
        ("at most since the last reset", peak()),
        ("free", free()),
        ("in all", total()),
    ]
    head = [f"Memory of `{client().device.name}` ({client().chip.device_kind})"]
    head += [f"{readable(n):>11}  {name}" for name, n in rows]
    return "\n".join([*head, "held by", listing(holds) or "             nothing"])


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


def _see(nbytes: int) -> None:
    _peak.seen = max(_peak.seen, nbytes)


def _parts(array: jax.Array, chip: jax.Device) -> list[Any]:  # pyright: ignore[reportInvalidTypeForm]
    if len(array.sharding.device_set) == 1:
        return [array]
    return [shard.data for shard in array.addressable_shards if shard.device == chip]


def _address(array: Any) -> Any:
    """Where the array lies; what is not there yet lies where no other does."""
    if not is_there(array):
        return id(array)
    try:
        return array.unsafe_buffer_pointer() or id(array)
    except (RuntimeError, NotImplementedError, ValueError):  # devices that do not tell
        return id(array)


running.raise_if_exhausted = raise_if_exhausted
