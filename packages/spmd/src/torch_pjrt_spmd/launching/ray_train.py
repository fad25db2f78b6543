"""Ray Train's own loop on this device: `TorchTrainer(..., torch_config=PjrtConfig())`.

    def train(config):
        model = DistributedDataParallel(Model().to("pjrt"))
        ...
        ray.train.report({"loss": loss.item()}, checkpoint=...)

    TorchTrainer(train, torch_config=PjrtConfig(), scaling_config=ScalingConfig(num_workers=2)).fit()

Ray places the processes, sets their variables, starts them again, and keeps checkpoints. The device is
`"pjrt"`: Ray's `prepare_model` and `prepare_data_loader` know of CPUs and GPUs alone, so they are not called.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ray.train.torch import TorchConfig  # pyright: ignore[reportMissingImports]
from ray.train.torch.config import _TorchBackend  # pyright: ignore[reportMissingImports]


@dataclass
class PjrtConfig(TorchConfig):
    """How Ray Train joins its processes: CPU tensors by gloo, those of the device by the backend `pjrt`."""

    backend: str | None = "cpu:gloo,pjrt:pjrt"

    @property
    def backend_cls(self) -> type[Any]:
        return _PjrtBackend


class _PjrtBackend(_TorchBackend):
    """Ray's own, and then Accelerate is told of the device, for which Ray names the CPU."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        super().on_start(worker_group, backend_config)
        worker_group.execute(_name_device)


def _name_device() -> None:
    os.environ["ACCELERATE_TORCH_DEVICE"] = "pjrt"
