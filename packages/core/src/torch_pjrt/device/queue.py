"""The device's one queue and moments of it: `torch.pjrt.Stream`, `torch.pjrt.Event`.

`torch.Stream` and `torch.Event` make them for this device. PyTorch's own ask a device guard written in C++
for the rest: there is none, so they would time nothing and wait for nothing.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

import torch

from torch_pjrt.device.standing_classes import is_pjrt, stand_for
from torch_pjrt.device_index import check_index

_Stream: Any = torch._C.Stream
_Event: Any = torch._C.Event


def install() -> None:
    """Let `torch.Stream` and `torch.Event` make these for this device; does nothing the second time."""
    stand_for("Stream", _stream)
    stand_for("Event", _event)


def _stream(original: Any, *args: Any, **kwargs: Any) -> Any:
    if "device_type" in kwargs:
        # as an object is described: a number for the type of its device
        mine = kwargs["device_type"] == Stream().device_type
        return Stream() if mine else original(*args, **kwargs)
    return (Stream if _means_this(args, kwargs) else original)(*args, **kwargs)


def _event(original: Any, *args: Any, **kwargs: Any) -> Any:
    if not _means_this(args, kwargs):
        return original(*args, **kwargs)
    if len(args) > 1:
        raise TypeError(
            f"Event() takes from 0 to 1 positional arguments but {len(args)} were given"
        )
    return Event(**({"device": args[0]} if args else {}), **kwargs)


def _means_this(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device", args[0] if args else None)
    if device is None:
        device = torch._C._accelerator_getAccelerator()
    return is_pjrt(device)


class Stream(_Stream):
    """The device's one queue: programs run in the order in which they were launched."""

    def __new__(cls, device: Any = None, priority: int = 0, **described: Any) -> Self:
        check_index(device)
        if wrong := described.keys() - {"stream_id", "device_index", "device_type"}:
            raise TypeError(f"Stream() got an unexpected keyword argument '{min(wrong)}'")
        return super().__new__(cls, device=torch.device("pjrt", 0), priority=priority)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        torch.pjrt.synchronize()  # type: ignore[attr-defined]

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for: there is one queue. `RuntimeError` for a stream of another device."""
        _check_stream(stream)
        if stream.device.type != "pjrt":
            raise RuntimeError(
                f"A stream of {_type(self)} cannot wait for one of {_type(stream)}: call its `synchronize()`."
            )

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for: there is one queue. `RuntimeError` for an event of another device."""
        _check_event(event, "event")
        if event.device.type not in ("pjrt", "cpu"):  # one of the CPU is never recorded
            raise RuntimeError(_mismatch(event, "blocking", self))

    def record_event(self, event: Any = None) -> Any:
        """The event, or a new one, recorded now."""
        event = Event() if event is None else event
        _check_event(event, "event")
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether the device has finished; launches what is pending, and waits for nothing."""
        if (waiting := sys.modules.get("torch_pjrt.client.wait")) is None:
            return True
        from torch_pjrt.run.sync import sync

        sync("torch.pjrt.Stream.query()")
        return waiting.launched().is_done()


class Event(_Event):
    """A moment of the queue; times are those of the host at which the device had finished.

    It is one to PyTorch's C++, too: what waits for an event there takes what it is given for one, unseen.

    One that is not timed orders nothing, for the queue does. It runs nothing either: `synchronize` and
    `query` ask for the programs that had been launched when it was recorded. What was only recorded by then
    is no part of them, and who reads it waits for it.
    """

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        *,
        device: Any = None,
    ) -> Self:
        check_index(device)
        return super().__new__(
            cls,
            device="pjrt",
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )

    def __init__(self, enable_timing: bool = False, *_: Any, **__: Any) -> None:
        self._is_timed = enable_timing
        self._is_recorded = False
        self._time_s: float | None = None
        self._launched: Any = None

    @property
    def device(self) -> torch.device:
        """That of the queue in which it was recorded; without an index before."""
        return torch.device("pjrt", 0) if self._is_recorded else torch.device("pjrt")

    def record(self, stream: Any = None) -> Event:
        """The event itself. Where it is timed, wait for the device and note the time; else stop nothing."""
        if stream is not None:
            _check_stream(stream)
            if stream.device.type != "pjrt":
                raise RuntimeError(_mismatch(self, "recording", stream))
        if self._is_timed:
            torch.pjrt.synchronize()  # type: ignore[attr-defined]
            self._time_s = time.perf_counter()
        elif (waiting := sys.modules.get("torch_pjrt.client.wait")) is not None:
            self._launched = waiting.launched()
        self._is_recorded = True
        return self

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for: there is one queue. `RuntimeError` for a stream of another device."""
        if stream is None:
            return
        _check_stream(stream)
        if self._is_recorded and stream.device.type != "pjrt":
            raise RuntimeError(_mismatch(self, "blocking", stream))

    def synchronize(self) -> None:
        """Wait until the device has finished what had been launched when the event was recorded."""
        if self._launched is not None:
            self._launched.wait()

    def query(self) -> bool:
        """Whether the device has finished what had been launched when the event was recorded."""
        return self._launched is None or self._launched.is_done()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another.

        `ValueError` if one is not timed or was not recorded, `RuntimeError` if it is of another device.
        """
        _check_event(end_event, "other")
        if end_event.device.type != "pjrt":
            raise RuntimeError(
                f"Event device type {_type(self)} does not match other's device type {_type(end_event)}."
            )
        if not (self._is_timed and getattr(end_event, "_is_timed", False)):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time_s is None or end_event._time_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time_s - self._time_s) * 1e3


# PyTorch's C++ looks at no stream or event that it is given, and would read memory that is not one's own.
def _check_stream(x: Any) -> None:
    if not isinstance(x, _Stream):
        raise TypeError(f"expected a torch.Stream object; saw {type(x).__name__}")


def _check_event(x: Any, name: str) -> None:
    if not isinstance(x, _Event):
        raise RuntimeError(f"expected {name} to be a torch.Event object")


def _type(x: Any) -> str:
    return x.device.type.upper()


def _mismatch(event: Any, doing: str, stream: Any) -> str:
    return (
        f"Event device type {_type(event)} does not match {doing} stream's device type "
        f"{_type(stream)}."
    )
