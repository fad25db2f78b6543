"""The strategies `pjrt_ddp` and `pjrt_fsdp`: processes, each with its `pjrt:0`, over the backend `pjrt`.

A launcher starts the processes (torchrun); Lightning starts none. `devices` is how many there are on a host.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_pjrt_ecosystem.for_lightning.trees import is_fabric, registry_of
from torch_pjrt_ecosystem.joined import check_can_join


def n_processes() -> int:
    """How many a launcher has started, on all hosts. Lightning deletes WORLD_SIZE when a training ends."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE") or 1)


def n_local_processes() -> int:
    """How many of them are on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or n_processes())


def install(strategies: ModuleType) -> None:
    """`strategies` is a module of that name, which has the registry and the base classes."""
    registry = registry_of(strategies, "strategy")
    ddp = _ddp(strategies.DDPStrategy)
    fsdp = (_fabric_fsdp if is_fabric(strategies) else _trainer_fsdp)(
        strategies.ModelParallelStrategy
    )
    for made, said in (
        (ddp, "Several processes that torchrun starts: DDP over the backend pjrt"),
        (fsdp, "Several processes that torchrun starts: FSDP2 over the backend pjrt"),
    ):
        if made.strategy_name not in registry:
            registry.register(made.strategy_name, made, description=said)


def shard(model: nn.Module, mesh: Any) -> nn.Module:
    """PyTorch's `fully_shard` on the model as one group."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh["data_parallel"])
    return model


class _Joined:
    """What both strategies have: processes meet by the backend `pjrt`, or there is an error."""

    def _configure_launcher(self) -> None:
        """The first moment that knows all: what follows may start the device for this process alone."""
        super()._configure_launcher()  # type: ignore[misc]
        self._join()

    def _join(self: Any) -> None:
        """Before Lightning does it: it would bind the group to a device, and then no part splits off."""
        (getattr(self, "set_world_ranks", None) or self._set_world_ranks)()  # Trainer, Fabric
        self._process_group_backend = backend = self._get_process_group_backend()
        if not dist.is_initialized():
            dist.init_process_group(
                backend,
                init_method=_address(self.cluster_environment),
                rank=self.global_rank,
                world_size=self.world_size,
                timeout=self._timeout,
            )

    def _get_process_group_backend(self) -> str:
        asked = self._process_group_backend  # type: ignore[attr-defined]
        check_can_join("Lightning", asked)
        return asked or "pjrt"


def _address(environment: Any) -> str:
    """Where they meet: torchrun has a store for it."""
    if "MASTER_ADDR" in os.environ:
        return "env://"
    return f"tcp://{environment.main_address}:{environment.main_port}"


def _ddp(base: Any) -> Any:
    class PjrtDDPStrategy(_Joined, base):
        """Lightning's DDP; its arguments."""

        strategy_name = "pjrt_ddp"

        def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
            return DistributedDataParallel(model, device_ids=[0], **self._ddp_kwargs)

        setup_module = _setup_model

    return PjrtDDPStrategy


def _fsdp(base: Any) -> Any:
    class PjrtFSDPStrategy(_Joined, base):
        """Lightning's strategy for FSDP2: all processes share the parameters, unless told otherwise."""

        strategy_name = "pjrt_fsdp"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{"tensor_parallel_size": 1, **kwargs})

        def setup_environment(self) -> None:
            """The size of the mesh follows from how many processes there are."""
            if self._data_parallel_size == "auto":
                self._data_parallel_size = n_processes() // self._tensor_parallel_size
            super().setup_environment()

    return PjrtFSDPStrategy


def _trainer_fsdp(base: Any) -> Any:
    class PjrtFSDPStrategy(_fsdp(base)):
        """Shards the model as one group where the module has no `configure_model` of its own."""

        def setup_environment(self) -> None:
            """Gives the module a `configure_model`, which Lightning calls next."""
            super().setup_environment()
            module, mesh = self.lightning_module, self.device_mesh
            parent = next(c for c in type(module).__mro__ if c.__name__ == "LightningModule")
            if type(module).configure_model is parent.configure_model:
                module.configure_model = lambda: shard(module, mesh)

    return PjrtFSDPStrategy


def _fabric_fsdp(base: Any) -> Any:
    class PjrtFSDPStrategy(_fsdp(base)):
        """Shards the model as one group where no `parallelize_fn` is given."""

        def __init__(self, parallelize_fn: Any = shard, **kwargs: Any) -> None:
            super().__init__(parallelize_fn=parallelize_fn, **kwargs)

    return PjrtFSDPStrategy
