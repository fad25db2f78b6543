"""`torch.pjrt`'s functions about memory and the device's properties, named as in `torch.cuda`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from torch_pjrt.errors import DeviceError, UnsupportedError

_GROUPS = ("all", "large_pool", "small_pool")


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What is known of the device.

    name          what the hardware calls itself.
    total_memory  bytes; the host's on the CPU.
    platform      the PJRT platform: "cpu", "cuda", "tpu", ...
    multi_processor_count    cores, where the device tells; else 0.
    major, minor  the compute capability of a GPU; else 0.
    """

    name: str
    total_memory: int
    platform: str
    multi_processor_count: int
    major: int
    minor: int


class MemoryFunctions:
    """The part of `torch.pjrt` that is about memory. Sizes are bytes; `device` is `pjrt:0`.

    Each starts the device where it is needed. What waits to be run holds no memory yet. Where the device is
    several chips, `chip` says which of them, from 0 on; without it, the one with the most in use is meant. Of
    a tensor that is spread over chips each has its part. `DeviceError` for a chip that is not there.
    """

    def memory_allocated(self, device: Any = None, *, chip: int | None = None) -> int:
        """Bytes in use now: the device's own account, or the sum of all live arrays where it keeps none."""
        return _memory().in_use(_checked(chip))

    def max_memory_allocated(self, device: Any = None, *, chip: int | None = None) -> int:
        """The most bytes in use since the start or `reset_peak_memory_stats`, programs' own needs included.

        Exact where the device keeps account. Elsewhere it is what was seen after the 1st, 2nd, 4th, 8th, ...
        launch of each program; after all of them with TORCH_PJRT_TRACE_MEMORY=1.
        """
        return _memory().peak(_checked(chip))

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Let `max_memory_allocated` start anew from what is in use now."""
        _memory().reset_peak()

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        """Accepted: nothing is accumulated but the peak."""

    def reset_max_memory_allocated(self, device: Any = None) -> None:
        """As `reset_peak_memory_stats`."""
        self.reset_peak_memory_stats(device)

    def memory_reserved(self, device: Any = None, *, chip: int | None = None) -> int:
        """Bytes that the device's allocator has taken, where it says so; else as `memory_allocated`."""
        found = _memory().statistics(_checked(chip))
        taken = found.get("pool_bytes") or found.get("bytes_reserved")
        return taken or self.memory_allocated(chip=chip)

    def max_memory_reserved(self, device: Any = None, *, chip: int | None = None) -> int:
        """The most of it, where the device says so; else as `max_memory_allocated`."""
        found = _memory().statistics(_checked(chip))
        most = found.get("peak_pool_bytes") or found.get("peak_bytes_reserved")
        return most or self.max_memory_allocated(chip=chip)

    def memory_stats(self, device: Any = None, *, chip: int | None = None) -> OrderedDict[str, Any]:
        """By `torch.cuda`'s names (`allocated_bytes.all.current`), and the device's own as `pjrt.*`."""
        nested = self._memory_stats(chip=chip)
        found = {
            f"{name}.{group}.{when}": n
            for name, groups in nested.items()
            if isinstance(groups, dict)
            for group, times in groups.items()
            for when, n in times.items()
        }
        found.update((k, n) for k, n in nested.items() if not isinstance(n, dict))
        found.update((f"pjrt.{k}", n) for k, n in _memory().statistics(chip).items())
        return OrderedDict(sorted(found.items()))

    def _memory_stats(self, *, chip: int | None = None) -> dict[str, Any]:
        """As PyTorch's C++ gives them: name -> group -> current and peak; nothing is summed up."""
        memory = _memory()
        _checked(chip)
        now, most = memory.in_use(chip), memory.peak(chip)
        reserved, most_reserved = (
            self.memory_reserved(chip=chip),
            self.max_memory_reserved(chip=chip),
        )
        return {
            "num_ooms": memory.exhaustions(),
            "allocated_bytes": _grouped(now, most),
            "active_bytes": _grouped(now, most),
            "requested_bytes": _grouped(now, most),
            "reserved_bytes": _grouped(reserved, most_reserved),
        }

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """Use, peak and what holds the memory, for a person, of each chip; `abbreviated` changes nothing."""
        return _memory().summary()

    def mem_get_info(self, device: Any = None, *, chip: int | None = None) -> tuple[int, int]:
        """Bytes free (of the chip with the least) and in all; on the CPU, the host's."""
        return _memory().free(_checked(chip)), _memory().total(chip)

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        """Name, memory, and what else the device tells of itself."""
        memory = _memory()
        chip = memory.client().chip
        major, _, minor = str(getattr(chip, "compute_capability", "0.0")).partition(".")
        return DeviceProperties(
            chip.device_kind,
            memory.total(),
            chip.platform,
            int(getattr(chip, "core_count", 0)),
            int(major),
            int(minor or 0),
        )

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """A GPU's compute capability, major and minor; `UnsupportedError` for what is no such GPU."""
        known = self.get_device_properties()
        if not known.major:
            raise UnsupportedError(
                f"`{known.name}` has no compute capability: it is no CUDA GPU.",
                hint="`torch.pjrt.get_device_properties()` says what is known of it",
            )
        return known.major, known.minor


def _grouped(now: int, most: int) -> dict[str, dict[str, int]]:
    """One number in the groups that `torch.cuda` has; there is one pool here."""
    every = {"current": now, "peak": most}
    return {group: every if group == "all" else dict.fromkeys(every, 0) for group in _GROUPS}


def _checked(chip: int | None) -> int | None:
    n = len(_memory().client().chips)
    if chip is not None and not 0 <= chip < n:
        raise DeviceError(
            "There is no such chip.", saw=f"chip {chip}", expected=f"a number from 0 to {n - 1}"
        )
    return chip


def _memory() -> Any:
    torch.pjrt.init()  # type: ignore[attr-defined]
    from torch_pjrt.client import memory

    return memory
