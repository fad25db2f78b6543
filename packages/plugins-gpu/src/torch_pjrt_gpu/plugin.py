"""The plugin: one device, `GPU`, usable where a driver and JAX's plugin for it are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_pjrt.plugin import (
    Device,
    ForeignCalls,
    LoweringTable,
    Option,
    gpu_options,
    impl,
    platform_chips,
)
from torch_pjrt_gpu import aot
from torch_pjrt_gpu.probe import Finding, find
from torch_pjrt_gpu.targets import CARDS

if TYPE_CHECKING:
    import jax


class Gpu(Device):
    """The first NVIDIA or AMD card.

    If JAX has started its GPU client, that one is used. Else one of our own is made, so that nothing
    else is started with it, and which takes memory as it is needed.
    """

    name = "GPU"
    priority = 200

    def __init__(self, finding: Finding | None = None) -> None:
        self._finding = finding

    @property
    def finding(self) -> Finding:
        """What the machine has; looked up once."""
        if self._finding is None:
            self._finding = find()
        return self._finding

    def objection(self) -> str | None:
        return self.finding.objection

    def start(self) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        stack = self.finding.stack
        assert stack is not None
        return platform_chips(stack.platform, self.client_options())

    def client_options(self) -> dict[str, Option]:
        """JAX's own, of its environment variables. Preallocation only where they or the user ask for it:
        it would take three quarters of the card, and PyTorch's own CUDA in the process may want some.
        """
        options = {"preallocate": False, **gpu_options()}
        stack = self.finding.stack
        if stack is not None and stack.platform == "rocm":
            options["platform_name"] = "ROCM"
        return options

    def has_cudnn(self) -> bool:
        """Whether its programs may call cuDNN: on NVIDIA's cards, and for targets, which all are such."""
        stack = self.finding.stack
        return stack is None or stack.platform == "cuda"

    def compile_only_chips(self, target: str) -> Sequence[jax.Device] | None:  # pyright: ignore[reportInvalidTypeForm]
        return aot.chips_of(target)

    def target_memory_bytes(self, target: str) -> int | None:
        found = aot.card_of(target)
        return found[0].memory_bytes if found else None

    def targets(self) -> Sequence[str]:
        return tuple(CARDS)

    def fingerprint(self) -> str:
        """JAX's plugin and its version: the compiler is in it."""
        from importlib.metadata import version

        name = self.finding.plugin
        return f"{name} {version(name)}" if name else ""


@impl
def torch_pjrt_lowerings(device: Device) -> LoweringTable | None:
    """Attention by cuDNN, on NVIDIA's cards."""
    if not isinstance(device, Gpu) or not device.has_cudnn():
        return None
    from torch_pjrt_gpu.attention import table

    return table


@impl
def torch_pjrt_foreign_calls(device: Device) -> list[ForeignCalls]:
    """JAX's and cuDNN's."""
    if not isinstance(device, Gpu):
        return []
    from torch_pjrt_gpu.foreign_calls import foreign_calls  # which imports jaxlib

    return foreign_calls("CUDA" if device.has_cudnn() else "ROCM")


@impl
def torch_pjrt_devices() -> list[Device]:
    """The card."""
    return [Gpu()]
