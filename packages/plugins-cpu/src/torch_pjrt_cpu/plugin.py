"""The plugin: one device, `CPU`, always usable."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_pjrt.errors import DeviceError
from torch_pjrt.plugin import (
    AutocastRules,
    Device,
    ForeignCalls,
    LoweringTable,
    client_options,
    cpu_chips,
    impl,
    separate_cpu_chips,
)
from torch_pjrt_cpu.autocast import RULES
from torch_pjrt_cpu.virtual_chips import threads_for_virtual_chips

if TYPE_CHECKING:
    import jax


_SHARE_OF_MAPPINGS = 0.75


class Cpu(Device):
    """The host's processor, by the XLA CPU client that jaxlib embeds.

    The client is the one of the user's own JAX code, where that has a CPU backend.
    """

    name = "CPU"
    priority = 0

    def objection(self) -> str | None:
        return None

    def start(self) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        if given := client_options():
            raise DeviceError(
                "The client of the CPU takes no options.",
                saw=f"TORCH_PJRT_CLIENT_OPTIONS names {', '.join(given)}",
                hint="unset TORCH_PJRT_CLIENT_OPTIONS, or choose another device by PJRT_DEVICE",
            )
        try:
            with threads_for_virtual_chips():
                return cpu_chips()
        except (RuntimeError, AssertionError):
            # JAX_PLATFORMS leaves the CPU out, or names something that fails.
            return separate_cpu_chips()

    def compile_options(self) -> Mapping[str, Any]:
        """Halves are rounded after each operator, as PyTorch's are, and not only where a loop ends."""
        return {"xla_allow_excess_precision": False}

    def prepare(self, module: Any) -> None:
        from torch_pjrt_cpu.products import reshape_products  # which import JAX
        from torch_pjrt_cpu.rounded_products import round_first
        from torch_pjrt_cpu.rounding import hold

        reshape_products(module)
        hold(module)
        round_first(module)

    def fingerprint(self) -> str:
        """The processor's instructions: XLA compiles for those of the machine that it runs on."""
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:  # no Linux
            return f"{platform.machine()} {platform.processor()} {platform.node()}"
        said = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
        return "\n".join(sorted(set(said)))

    def has_room_for_programs(self) -> bool:
        """Compiled code is many mappings of memory, some 30 a program, which Linux bounds for a process.

        XLA does not survive that bound.
        """
        try:
            most = int(Path("/proc/sys/vm/max_map_count").read_text())
            with Path("/proc/self/maps").open("rb") as mappings:
                return sum(1 for _ in mappings) < _SHARE_OF_MAPPINGS * most
        except OSError:  # no Linux
            return True

    def autocast_rules(self) -> AutocastRules:
        return RULES


@impl
def torch_pjrt_devices() -> list[Device]:
    """The processor."""
    return [Cpu()]


@impl
def torch_pjrt_lowerings(device: Device) -> LoweringTable | None:
    """The processor's own rules."""
    if device.name != Cpu.name:
        return None
    from torch_pjrt_cpu import attention, conv, grouped_matmul  # which import JAX

    return LoweringTable.merged(device.name, (attention.table, conv.table, grouped_matmul.table))


@impl
def torch_pjrt_foreign_calls(device: Device) -> list[ForeignCalls]:
    """LAPACK."""
    if device.name != Cpu.name:
        return []
    from torch_pjrt_cpu.lapack import foreign_calls  # which imports jaxlib

    return foreign_calls()
