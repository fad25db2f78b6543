"""Sampling with a scheduler of diffusers: each step one program, and no read.

A scheduler looks its times up, and computes with them as with numbers. Where they are on the device it reads
them, many in each step. So a scheduler has them twice: on the device for pipelines, on the host for itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import NotThere, wrap

_HOST = "_pjrt_timesteps_on_host"


def install(scheduling_utils: ModuleType) -> None:
    """`scheduling_utils` has the base class; schedulers are changed as their classes are made."""
    base: Any = scheduling_utils.SchedulerMixin
    if "__init_subclass__" in vars(base):
        if getattr(vars(base)["__init_subclass__"].__func__, "around", None) is _change:
            return
        raise NotThere("`SchedulerMixin` has an `__init_subclass__` of its own")

    def init_subclass(cls: Any, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        _change(cls)

    init_subclass.around = _change  # type: ignore[attr-defined]
    base.__init_subclass__ = classmethod(init_subclass)


def _change(scheduler: type) -> None:
    for name, around in (
        ("set_timesteps", _set_timesteps),
        ("scale_model_input", _with_times_on_host),
        ("step", _step),
    ):
        if name in vars(scheduler):
            wrap(scheduler, name, around)


def _set_timesteps(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    self.__dict__.pop(_HOST, None)
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    device = bound.arguments.get("device")
    if device is None or torch.device(device).type != "pjrt":
        original(self, *args, **kwargs)
        return
    bound.arguments["device"] = "cpu"
    original(*bound.args, **bound.kwargs)
    host = self.timesteps
    self.timesteps = host.to(device)
    setattr(self, _HOST, host)


def _with_times_on_host(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """The time is the second argument, or one by name."""
    host = self.__dict__.get(_HOST)
    time = args[1] if len(args) > 1 else kwargs.get("timestep")
    on_device = self.timesteps
    if host is None or on_device is host or (isinstance(time, torch.Tensor) and time.ndim):
        return original(self, *args, **kwargs)
    if isinstance(time, torch.Tensor) and time.device.type == "pjrt":
        time = _on_host(time, on_device, host)
    if len(args) > 1:
        args = (args[0], time, *args[2:])
    elif "timestep" in kwargs:
        kwargs["timestep"] = time
    self.timesteps = host
    try:
        return original(self, *args, **kwargs)
    finally:
        if self.timesteps is host:
            self.timesteps = on_device


def _on_host(time: torch.Tensor, on_device: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """An element of the scheduler's times is known; another is read."""
    from torch_pjrt.extend import buffer_of

    is_known = buffer_of(time) is buffer_of(on_device) and on_device.is_contiguous()
    return host[time.storage_offset()] if is_known else time.cpu()


def _step(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A step ends a program: many of them in one would be compiled for each number of steps."""
    result = _with_times_on_host(original, self, *args, **kwargs)
    sample = args[0] if args else next(iter(kwargs.values()), None)
    is_ours = isinstance(sample, torch.Tensor) and sample.device.type == "pjrt"
    if is_ours and not torch.compiler.is_compiling():
        import torch_pjrt

        torch_pjrt.sync()
    return result
