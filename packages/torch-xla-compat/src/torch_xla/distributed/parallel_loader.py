"""Batches brought to the device in the background (`torch_xla.distributed.parallel_loader`, `pl`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch_pjrt
from torch_xla import device_strings
from torch_xla.core.saving import send_cpu_data_to_device
from torch_xla.steps import sync


class MpDeviceLoader:
    """The batches of `loader` on the device, a sync behind each of them.

    loader                 any iterable of nests of CPU tensors.
    device                 the device; several names mean the same one.
    batches_per_execution  how many batches a sync comes after. input_sharding: a `spmd.ShardingSpec`, or a
                           dict of them by the keys of a batch.
    device_prefetch_size   how many batches are on the device in advance.

    A loader that tells where it is, as Accelerate's does by `end_of_dataloader`, is not read in advance: its
    word is about the batch that was received last.

    What else torch_xla's takes (threads, sizes of queues on the host) is accepted and not used.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any = None,
        *,
        batches_per_execution: int = 1,
        input_sharding: Any = None,
        device_prefetch_size: int = 2,
        **unused: Any,
    ) -> None:
        self._loader = loader
        self._device = device_strings.own(device)
        self._every = batches_per_execution
        self._sharding = input_sharding
        self._prefetch = device_prefetch_size

    def __iter__(self) -> Iterator[Any]:
        count = 0
        for batch in self._batches():
            yield batch
            count += 1
            if count % self._every == 0:
                sync()
        if count % self._every:
            sync()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)  # `dataset`, `sampler`, `batch_size`

    def close(self) -> None:
        """Nothing: what the iteration started ends with it."""

    def _batches(self) -> Iterable[Any]:
        if self._sharding is not None or hasattr(self._loader, "end_of_dataloader"):
            return map(self._placed, self._loader)
        return torch_pjrt.DeviceLoader(self._loader, self._device, prefetch=self._prefetch)

    def _placed(self, batch: Any) -> Any:
        if isinstance(self._sharding, dict):
            return send_cpu_data_to_device([batch], self._device, self._sharding)[0]
        return send_cpu_data_to_device(batch, self._device, self._sharding)


class ParallelLoader:
    """The older form: `ParallelLoader(loader, devices).per_device_loader(device)`."""

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Sequence[Any],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 2,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
    ) -> None:
        self._loader = cpu_loader
        self._options = {
            "batches_per_execution": batches_per_execution,
            "device_prefetch_size": device_prefetch_size,
            "input_sharding": input_sharding,
        }

    def per_device_loader(self, device: Any) -> PerDeviceLoader:
        """The loader of one device, which is that of the process."""
        return PerDeviceLoader(self._loader, device, **self._options)

    def close(self) -> None:
        """Nothing: what an iteration started ends with it."""


class PerDeviceLoader(MpDeviceLoader):
    """What `ParallelLoader.per_device_loader` returns: batches, each with a sync behind it."""
