"""`torch.Stream` and `torch.Event` of this device do what PyTorch documents, however they are made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_pjrt.errors import DeviceError
from torch_pjrt.observe.counters import counters

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]
HERE = torch.device("pjrt", 0)

STREAMS: dict[str, Callable[[], Any]] = {
    "of a name": lambda: torch.Stream("pjrt"),
    "of a device": lambda: torch.Stream(device=torch.device("pjrt:0")),
    "of an index": lambda: torch.Stream(0),  # type: ignore[call-overload]
    "of the accelerator": torch.Stream,
    "with a priority": lambda: torch.Stream("pjrt", priority=-1),
    "as it is described": lambda: torch.Stream(
        stream_id=0, device_index=0, device_type=torch.Stream("pjrt").device_type
    ),
    "of the module": pjrt.Stream,
    "of the module, of an index": lambda: pjrt.Stream(0),
    "current": pjrt.current_stream,
    "default": pjrt.default_stream,
    "accelerator's current": torch.accelerator.current_stream,
}

EVENTS: dict[str, Callable[..., Any]] = {
    "of a name": lambda **options: torch.Event("pjrt", **options),
    "of a device": lambda **options: torch.Event(device=torch.device("pjrt:0"), **options),
    "of an index": lambda **options: torch.Event(0, **options),  # type: ignore[arg-type]
    "of the accelerator": torch.Event,
    "with all options": lambda **options: torch.Event(
        "pjrt", blocking=True, interprocess=True, **options
    ),
    "of the module": pjrt.Event,
    "of the module, by position": lambda enable_timing=False: pjrt.Event(enable_timing, True, True),
}


def recorded(**options: Any) -> Any:
    event = torch.Event("pjrt", **options)
    event.record()
    return event


def raised(call: Callable[[], Any]) -> type[BaseException]:
    with pytest.raises(Exception) as info:
        call()
    return info.type


# name of `torch.Stream` -> (call, what it gives); a type of error where it raises
OF_STREAMS: dict[str, list[tuple[Callable[[Any], Any], Any]]] = {
    "device": [(lambda s: s.device, HERE)],
    "device_index": [(lambda s: s.device_index, 0)],
    "device_type": [(lambda s: s.device_type, 20)],
    "stream_id": [(lambda s: s.stream_id, 0)],
    "is_capturing": [(lambda s: s.is_capturing(), False)],
    "native_handle": [(lambda s: s.native_handle, RuntimeError)],
    "synchronize": [(lambda s: s.synchronize(), None)],
    "query": [(lambda s: s.synchronize() or s.query(), True)],
    "record_event": [
        (lambda s: isinstance(s.record_event(), torch.Event), True),
        (lambda s: s.record_event().query() in (True, False), True),
        (lambda s: (e := torch.Event("pjrt")) is s.record_event(e), True),
        (lambda s: (e := pjrt.Event()) is s.record_event(event=e), True),
        (lambda s: s.record_event(torch.Event("cpu")), RuntimeError),
        (lambda s: s.record_event(3), RuntimeError),
    ],
    "wait_event": [
        (lambda s: s.wait_event(torch.Event("pjrt")), None),
        (lambda s: s.wait_event(recorded()), None),
        (lambda s: s.wait_event(recorded(enable_timing=True)), None),
        (lambda s: s.wait_event(torch.Event("cpu")), None),
        (lambda s: s.wait_event(3), RuntimeError),
    ],
    "wait_stream": [
        (lambda s: s.wait_stream(torch.Stream("pjrt")), None),
        (lambda s: s.wait_stream(s), None),
        (lambda s: s.wait_stream(torch.Stream("cpu")), RuntimeError),
        (lambda s: s.wait_stream(3), TypeError),
    ],
    "__enter__": [(lambda s: s.__enter__() is s and s.__exit__(None, None, None), None)],
    "__eq__": [
        (lambda s: s == torch.Stream("pjrt"), True),
        (lambda s: s == pjrt.current_stream(), True),
        (lambda s: s == torch.Stream("cpu"), False),
        (lambda s: s == 3, False),
    ],
    "__hash__": [(lambda s: hash(s) == hash(torch.Stream("pjrt")), True)],
    "record_stream": [(lambda s: torch.ones(2, device=HERE).record_stream(s), None)],
    "set_stream": [
        (torch.accelerator.set_stream, None),
        (pjrt.set_stream, None),
    ],
    "stream": [(lambda s: pjrt.stream(s).__enter__() is s, True)],
}  # fmt: skip

# The same of `torch.Event`: not recorded, then recorded.
OF_EVENTS: dict[str, list[tuple[Callable[[Any], Any], Any, Any]]] = {
    "device": [(lambda e: e.device, torch.device("pjrt"), HERE)],
    "event_id": [(lambda e: e.event_id, 0, 0)],
    "query": [(lambda e: e.synchronize() or e.query(), True, True)],
    "synchronize": [(lambda e: e.synchronize(), None, None)],
    "wait": [
        (lambda e: e.wait(), None, None),
        (lambda e: e.wait(torch.Stream("pjrt")), None, None),
        (lambda e: e.wait(stream=pjrt.current_stream()), None, None),
        (lambda e: e.wait(torch.Stream("cpu")), None, RuntimeError),
        (lambda e: e.wait(3), TypeError, TypeError),
    ],
    "elapsed_time": [
        (lambda e: e.elapsed_time(e), ValueError, ValueError),
        (lambda e: e.elapsed_time(recorded(enable_timing=True)), ValueError, ValueError),
        (lambda e: e.elapsed_time(torch.Event("cpu")), RuntimeError, RuntimeError),
        (lambda e: e.elapsed_time(3), RuntimeError, RuntimeError),
    ],
    "ipc_handle": [(lambda e: e.ipc_handle(), NotImplementedError, NotImplementedError)],
    "from_ipc_handle": [
        (lambda e: type(e).from_ipc_handle(HERE, b""), NotImplementedError, NotImplementedError)
    ],
    # these record it
    "record": [
        (lambda e: e.record() and None, None, None),
        (lambda e: e.record(torch.Stream("pjrt")) and None, None, None),
        (lambda e: e.record(stream=pjrt.Stream()) and None, None, None),
        (lambda e: e.record(torch.Stream("cpu")), RuntimeError, RuntimeError),
        (lambda e: e.record(3), TypeError, TypeError),
    ],
}  # fmt: skip


def outcome(call: Callable[[Any], Any], x: Any) -> Any:
    try:
        return call(x)
    except Exception as error:
        return next(c for c in type(error).__mro__ if c.__module__ == "builtins")


@pytest.mark.parametrize("made", STREAMS)
def test_streams_do_what_pytorch_documents(made: str) -> None:
    stream = STREAMS[made]()
    wrong = [
        (name, i, found)
        for name, cases in OF_STREAMS.items()
        for i, (call, expected) in enumerate(cases)
        if (found := outcome(call, stream)) != expected
    ]

    assert isinstance(stream, torch.Stream)
    assert not wrong


@pytest.mark.parametrize("made", EVENTS)
def test_events_do_what_pytorch_documents(made: str) -> None:
    event = EVENTS[made]()
    wrong = []
    for row in (1, 2):  # not recorded, recorded
        wrong += [
            (name, i, row, found)
            for name, cases in OF_EVENTS.items()
            for i, case in enumerate(cases)
            if (name != "record" or row == 2) and (found := outcome(case[0], event)) != case[row]
        ]
        event.record()

    assert isinstance(event, torch.Event)
    assert not wrong


def test_the_tables_have_each_name_that_pytorch_has() -> None:
    def names(c: type) -> set[str]:
        return {name for name in dir(c) if not name.startswith("_")}

    assert names(torch.Stream) - {"original", "make"} <= OF_STREAMS.keys()
    assert names(torch.Event) - {"original", "make"} <= OF_EVENTS.keys()


@pytest.mark.parametrize("made", EVENTS)
def test_time_between_two_events_is_in_milliseconds(made: str) -> None:
    first, second = (EVENTS[made](enable_timing=True) for _ in range(2))
    begin = time.perf_counter()
    first.record()
    time.sleep(0.02)
    second.record()
    most = (time.perf_counter() - begin) * 1e3

    assert 20 <= first.elapsed_time(second) <= most
    assert first.elapsed_time(first) == 0
    assert second.elapsed_time(end_event=first) == -first.elapsed_time(second)


def test_time_between_includes_what_was_recorded_between() -> None:
    x = torch.randn(300, 300, device=HERE)
    first, second = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    first.record()
    y = x @ x + 0.8125
    before = counters.programs_run
    second.record()

    assert counters.programs_run > before
    assert first.elapsed_time(second) > 0
    assert y.shape == (300, 300)


def test_one_event_of_two_without_a_time_is_a_value_error() -> None:
    timed, untimed = recorded(enable_timing=True), recorded()

    for first, second in ((timed, untimed), (untimed, timed)):
        with pytest.raises(ValueError, match="enable_timing=True"):
            first.elapsed_time(second)
    for first, second in ((timed, torch.Event("pjrt", enable_timing=True)),) * 2:
        with pytest.raises(ValueError, match="must be recorded"):
            first.elapsed_time(second)
        with pytest.raises(ValueError, match="must be recorded"):
            second.elapsed_time(first)


@pytest.mark.parametrize("made", EVENTS)
def test_event_that_is_not_timed_ends_no_program(made: str) -> None:
    x = torch.ones(5, device=HERE)
    pjrt.synchronize()
    before = counters.programs_run
    event = EVENTS[made]()
    y = x * 3 + 0.71875
    event.record()
    event.wait()
    torch.accelerator.current_stream().wait_event(event)
    event.synchronize()
    event.query()

    assert counters.programs_run == before
    assert y.sum().item() == 18.59375


def test_asking_a_stream_launches_what_is_pending() -> None:
    stream, x = torch.Stream("pjrt"), torch.ones(5, device=HERE)
    before = counters.programs_run
    y = x * 3 + 0.84375

    while not stream.query():
        pass

    assert counters.programs_run > before
    assert y.sum().item() == 19.21875


WRONG: list[tuple[Callable[[], Any], type[BaseException]]] = [
    (lambda: torch.Stream("pjrt:3"), DeviceError),
    (lambda: torch.Event("pjrt:3"), DeviceError),
    (lambda: torch.Stream("nonsense"), RuntimeError),
    (lambda: torch.Event("nonsense"), RuntimeError),
    (lambda: torch.Stream(foo=1), TypeError),  # type: ignore[call-overload]
    (lambda: torch.Event(foo=1), TypeError),  # type: ignore[call-arg]
    (lambda: torch.Event("pjrt", True), TypeError),  # type: ignore[misc]
    (lambda: torch.Event("pjrt", enable_timing="x"), TypeError),  # type: ignore[arg-type]
    (lambda: pjrt.Stream(foo=1), TypeError),
    (lambda: pjrt.Event(foo=1), TypeError),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_cannot_be_made_is_pytorchs_type_of_error(case: int) -> None:
    call, kind = WRONG[case]

    assert issubclass(raised(call), kind)


def test_names_of_pytorch_mean_its_classes() -> None:
    """Others' streams, classes of users and Dynamo's tuples of types."""

    class Own(torch.Stream):
        pass

    assert isinstance(torch.Stream("cpu"), torch.Stream)
    assert type(torch.Stream("cpu")) in (int, torch.Stream)
    assert torch._C.Stream == torch.Stream and {torch.Event: 1}[torch._C.Event]  # type: ignore[attr-defined]
    assert issubclass(pjrt.Event, torch.Event) and not issubclass(pjrt.Event, torch.Stream)
    assert type(Own("cpu")) is Own and isinstance(Own("cpu"), torch.Stream)
    assert not isinstance(torch.Stream("cpu"), Own) and Own != torch.Stream


def test_compiled_function_may_record_events() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        event = torch.Event()
        y = x * 2
        event.record()
        event.wait()
        return y + 1

    out = torch.compile(f, backend="eager")(torch.ones(2, device=HERE))

    assert out.tolist() == [3, 3]
