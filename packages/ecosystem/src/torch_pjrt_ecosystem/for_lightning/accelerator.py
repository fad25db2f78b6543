"""The accelerator `pjrt`, for `Trainer` and for Fabric."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_pjrt_ecosystem.at_hand import device as the_device
from torch_pjrt_ecosystem.for_lightning.in_processes import n_local_processes
from torch_pjrt_ecosystem.for_lightning.trees import misconfigured, registry_of, root_of


def install(accelerators: ModuleType) -> None:
    """`accelerators` is a module of that name, which has the registry and the base class."""
    registry = registry_of(accelerators, "accelerator")
    if "pjrt" not in registry:
        made = _made(accelerators.Accelerator, misconfigured(root_of(accelerators)))
        registry.register("pjrt", made, description="Any device of torch-pjrt")


def _made(base: Any, error: type[Exception]) -> type:
    class PjrtAccelerator(base):
        """One device to a process, which may be several chips."""

        def setup_device(self, device: torch.device) -> None:
            """Raises for a strategy that would train elsewhere."""
            if device.type != "pjrt":
                raise error(
                    f"The accelerator `pjrt` was given a strategy that trains on `{device}`. Leave out "
                    '`strategy`, or give "pjrt".'
                )

        def teardown(self) -> None:
            """Nothing to do: tensors and programs live as long as somebody holds them."""

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            """A number for each process of this host: one, or as many as torchrun has started."""
            n = n_local_processes()
            every = list(range(n))
            listed = ",".join(str(i) for i in every) + ("," if n == 1 else "")
            if devices in (n, -1, str(n), "-1", "auto", every, tuple(every), listed):
                return every
            raise error(
                f"`devices={devices!r}` with the accelerator `pjrt`: there is one device to a process, and "
                f"{n} on this host. Lightning starts none for it: torchrun does, with "
                "`--nproc-per-node`. Chips of a process are one device, over which tensors are spread "
                "(torch_pjrt_spmd)."
            )

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            """The device of each index."""
            return [the_device() for _ in devices]

        @staticmethod
        def auto_device_count() -> int:
            """How many devices `devices="auto"` means."""
            return n_local_processes()

        @staticmethod
        def is_available() -> bool:
            """Whether a plugin offers a device that can be used here."""
            return torch.pjrt.is_available()  # type: ignore[attr-defined]

        @staticmethod
        def name() -> str:
            """Its name in the registry."""
            return "pjrt"

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """`torch.pjrt.memory_stats()`."""
            return torch.pjrt.memory_stats()  # type: ignore[attr-defined]

    return PjrtAccelerator
