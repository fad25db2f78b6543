"""The plugin: one device, `TPU`, usable where chips and libtpu are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_pjrt.plugin import Device, ForeignCalls, Processes, impl, platform_chips
from torch_pjrt_tpu import aot, pod, probe

if TYPE_CHECKING:
    import jax

# What libtpu makes of these while it compiles: a program calls nothing when it runs.
_OF_THE_COMPILER = (
    "ApproxTopK",
    "Eigh",
    "LuDecomposition",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    "tpu_custom_call",
)


class Tpu(Device):
    """The TPU chips of this host.

    A chip belongs to one client, so it is that of JAX, which JAX starts as for any user of it; one of our
    own where JAX_PLATFORMS leaves TPUs out.
    """

    name = "TPU"
    priority = 300

    def objection(self) -> str | None:
        return probe.objection()

    def processes(self) -> Processes | None:
        """JAX's variables say which run this is part of, or the pod's own do."""
        return super().processes() or pod.processes()

    def start(self) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        import jax

        try:
            return jax.local_devices(backend="tpu")
        except (RuntimeError, AssertionError):
            return platform_chips("tpu")

    def compile_only_chips(self, target: str) -> Sequence[jax.Device] | None:  # pyright: ignore[reportInvalidTypeForm]
        return aot.chips_of(target)

    def targets(self) -> Sequence[str]:
        return aot.EXAMPLES

    def fingerprint(self) -> str:
        """The version of libtpu: the compiler is in it."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return f"libtpu {version('libtpu')}"
        except PackageNotFoundError:  # TPU_LIBRARY_PATH
            return ""


@impl
def torch_pjrt_devices() -> list[Device]:
    """The chips."""
    return [Tpu()]


@impl
def torch_pjrt_foreign_calls(device: Device) -> list[ForeignCalls]:
    """Those that are none to who runs a program."""
    return [ForeignCalls(_OF_THE_COMPILER)] if device.name == Tpu.name else []
