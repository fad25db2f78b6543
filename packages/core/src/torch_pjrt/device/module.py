"""`torch.pjrt`: the device module, named as `torch.cuda` names things where they mean the same."""

from __future__ import annotations

from types import ModuleType, TracebackType
from typing import Any

import torch

from torch_pjrt.device.memory import MemoryFunctions
from torch_pjrt.device.queue import Event, Stream
from torch_pjrt.device_index import check_index


class PjrtModule(MemoryFunctions, ModuleType):
    """Functions that PyTorch and its ecosystem call on a device module; one device, index 0.

    Several chips in a process are one sharded device, so `device_count` is 1 wherever there is one.
    """

    def __init__(self, name: str) -> None:
        ModuleType.__init__(self, name, self.__class__.__doc__)
        self.__file__ = __file__
        self.__path__ = []
        self.Stream = Stream
        self.Event = Event
        self.device = DeviceContext

    def is_available(self) -> bool:
        """Whether a device can be used here. Starts nothing, raises nothing."""
        from torch_pjrt.device.availability import is_available

        return is_available()

    def is_initialized(self) -> bool:
        """Whether the device has been started."""
        import sys

        client = sys.modules.get("torch_pjrt.client.client")
        return client is not None and client.is_started()

    def _is_in_bad_fork(self) -> bool:
        import sys

        client = sys.modules.get("torch_pjrt.client.client")
        return client is not None and client.is_in_bad_fork()

    def init(self) -> None:
        """Start the device. Raises `NoDevice` and its kin; does nothing the second time."""
        from torch_pjrt.tensor.registration.registry import register_all

        register_all()

    def _lazy_init(self) -> None:
        self.init()

    @property
    def _initialized(self) -> bool:
        return self.is_initialized()

    def device_count(self) -> int:
        """1 where a device can be used, else 0."""
        return int(self.is_available())

    def current_device(self) -> int:
        """Always 0."""
        return 0

    def set_device(self, device: Any) -> None:
        """Accepts index 0 (or -1, which changes nothing) and `LOCAL_RANK`; `DeviceError` for any other.

        It does not start the device, so a process of a run may choose before it joins.
        """
        check_index(device)

    def get_device_name(self, device: Any = None) -> str:
        """What the hardware calls itself."""
        check_index(device)
        return self._client().chip.device_kind

    def synchronize(self, device: Any = None) -> None:
        """Run what is pending and wait until the device has finished it."""
        check_index(device)
        if not self.is_initialized():
            return
        from torch_pjrt.client.wait import wait
        from torch_pjrt.run.deferred_checks import look
        from torch_pjrt.run.sync import sync

        sync("torch.pjrt.synchronize()")
        wait()
        look(wait=True)

    def _capability(self) -> dict[str, Any]:
        """What `torch.accelerator.get_device_capability` gives."""
        self.init()
        from torch_pjrt.client.memory import supported_dtypes

        return {"supported_dtypes": supported_dtypes()}

    def empty_cache(self) -> None:
        """There is no cache of freed memory to empty."""

    def manual_seed(self, seed: int) -> None:
        """Seed the device's random numbers; `torch.manual_seed` calls it too."""
        from torch_pjrt.graph.generator import generator

        generator.manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """As `manual_seed`: there is one device."""
        self.manual_seed(seed)

    def seed(self) -> None:
        """Seed from the system's entropy."""
        import secrets

        self.manual_seed(secrets.randbits(63))

    def seed_all(self) -> None:
        """As `seed`: there is one device."""
        self.seed()

    def initial_seed(self) -> int:
        """The seed in force."""
        from torch_pjrt.graph.generator import generator

        return generator.seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """16 bytes (uint8, on CPU) that `set_rng_state` takes: seed and offset."""
        check_index(device)
        from torch_pjrt.graph.generator import generator

        return generator.get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        """Go back to a state from `get_rng_state`; `RuntimeError` for anything else."""
        check_index(device)
        from torch_pjrt.graph.generator import generator

        generator.set_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """The states of all devices: one."""
        return [self.get_rng_state()]

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        """Set the state of the one device."""
        self.set_rng_state(states[0])

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """The dtypes that `torch.autocast("pjrt")` may use."""
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        """XLA has bfloat16 on every device."""
        return True

    def current_stream(self, device: Any = None) -> Stream:
        """The one queue of the device."""
        return Stream(device)

    def default_stream(self, device: Any = None) -> Stream:
        """The one queue of the device."""
        return Stream(device)

    def set_stream(self, stream: Stream) -> None:
        """Accepted: there is one queue."""

    def stream(self, stream: Stream | None) -> Stream:
        """A context manager that changes nothing: there is one queue."""
        return stream or Stream()

    def programs_compiled(self) -> int:
        """How many programs XLA has compiled in this process so far."""
        from torch_pjrt.observe.counters import counters

        return counters.programs_compiled

    def _client(self) -> Any:
        self.init()
        from torch_pjrt.client.client import client

        return client()


class DeviceContext:
    """`with torch.pjrt.device(0):` changes nothing: there is one device."""

    def __init__(self, device: Any = None) -> None:
        check_index(device)
        self.idx = 0

    def __enter__(self) -> DeviceContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None
