"""What a device plugin says of its device. A vendor subclasses `Device` and fills it in."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_pjrt.plugin.autocast import ACCELERATOR, AutocastRules
from torch_pjrt.plugin.capabilities import Capabilities
from torch_pjrt.plugin.processes import Processes, of_environment

if TYPE_CHECKING:
    import jax


class Device(abc.ABC):
    """One kind of hardware. Making the object must be cheap and must not start anything.

    name      what `PJRT_DEVICE` chooses it by, in upper case.
    priority  where `PJRT_DEVICE` is not set, the highest priority that is usable here is chosen.

        >>> class Mine(Device):
        ...     name = "MINE"  # PJRT_DEVICE=MINE
        ...     priority = 100
        ...
        ...     def objection(self):
        ...         return None  # it is here
        ...
        ...     def start(self):
        ...         return library_chips("mine", "/opt/mine/libpjrt_mine.so")
        >>> Mine().objection() is None
        True
    """

    name: str
    priority: int = 0

    @abc.abstractmethod
    def objection(self) -> str | None:
        """Why this machine cannot use the device, in words for a person; None if it can.

        Called when a device is chosen and by `python -m torch_pjrt plugins`. Must take milliseconds
        and must not start the device: look for a device file or a library, and leave it at that.
        """

    @abc.abstractmethod
    def start(self) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        """Start the device and list its local chips; the first one is used. Called once.

        Must not change JAX's own configuration or default backend: the process belongs to the user.
        """

    def processes(self) -> Processes | None:
        """The run of several processes that this one is part of; None if it is alone.

        Called once, before `start`, which then lists the chips of this process: those of the others are
        in the client's list of all (`chip.client.devices()`, each with its `process_index`). JAX's
        variables (`plugin/processes.py`), unless a device knows better: from its cluster's own, say.
        """
        return of_environment()

    def capabilities(self) -> Capabilities:
        """What the device can do. Called once, after `start`.

        All that XLA has, unless the device says otherwise: programs for it then do without.
        """
        return Capabilities()

    def compile_options(self) -> Mapping[str, Any]:
        """XLA compile options for every program on this device. The user's go over them
        (TORCH_PJRT_COMPILE_OPTIONS, `torch_pjrt.compile_options`).
        """
        return {}

    def prepare(self, module: Any) -> None:  # noqa: B027
        """Change a program, a StableHLO module of MLIR, before it is compiled. Called once for each.

        It must compute the same afterwards: this is for what the compiler would make of it otherwise.
        """

    def compile_only_chips(self, target: str) -> Sequence[jax.Device] | None:  # pyright: ignore[reportInvalidTypeForm]
        """The chips of `target` (`v5e:2x4`), for which programs can be compiled here without having them.

        None for a name that means nothing to this device. Called by `torch_pjrt.compile_for`, on machines
        without the device too; `DeviceError` where something that it takes is not installed.
        """
        return None

    def target_memory_bytes(self, target: str) -> int | None:
        """The memory of a chip of `target`, where its compiler does not refuse programs that need more."""
        return None

    def targets(self) -> Sequence[str]:
        """Names that `compile_only_chips` takes, or examples of them, for a person."""
        return ()

    def has_room_for_programs(self) -> bool:
        """Whether the process can hold some hundred compiled programs more. Asked now and then.

        Where it cannot, the older half is given back, to be compiled again, or loaded, when it is needed.
        """
        return True

    def fingerprint(self) -> str:
        """What a compiled program needs of this machine beside the kind of its chips and PJRT's version.

        Programs that an earlier process saved on disk are used only where this is the same. Asked once,
        after `start`.
        """
        return ""

    def autocast_rules(self) -> AutocastRules:
        """What `torch.autocast("pjrt")` casts on this device. Called once, after `start`.

        The rules of PyTorch's accelerators, unless the device has its own.
        """
        return ACCELERATOR

    def __repr__(self) -> str:
        return f"<device {self.name}>"
