"""`torch.accelerator` works for this device: index, queue, waiting, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_garbage")

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]
accelerator = torch.accelerator


def test_this_device_is_the_accelerator() -> None:
    current = accelerator.current_accelerator()

    assert current is not None and current.type == "pjrt"
    assert accelerator.is_available()
    assert accelerator.device_count() == 1


def test_there_is_one_index() -> None:
    accelerator.set_device_index(0)
    accelerator.set_device_index("pjrt:0")

    assert accelerator.current_device_index() == 0
    with pytest.raises(RuntimeError, match="one device"):
        accelerator.set_device_index(1)


def test_there_is_one_queue() -> None:
    stream = accelerator.current_stream()

    assert stream.device == torch.device("pjrt", 0)
    accelerator.set_stream(stream)


def test_its_queue_is_the_device_modules_and_takes_its_events() -> None:
    """C++ takes what it is given for an event, unseen: one that is none read memory that is not its own."""
    event = pjrt.Event().record()

    for stream in (accelerator.current_stream(), torch.Stream("pjrt"), pjrt.current_stream()):
        stream.wait_event(event)
        assert stream == accelerator.current_stream()
    assert isinstance(accelerator.current_stream(), pjrt.Stream)
    assert isinstance(accelerator.current_stream().record_event(), torch.Event)


def test_waiting_for_the_queue_runs_what_is_pending() -> None:
    x = torch.ones(3, device="pjrt")
    before = pjrt.programs_compiled()

    y = x * 7 + 0.375
    accelerator.current_stream().synchronize()

    assert pjrt.programs_compiled() > before
    assert y.sum().item() == 22.125


def test_synchronize_runs_what_is_pending() -> None:
    x = torch.ones(3, device="pjrt")
    before = pjrt.programs_compiled()

    y = x * 5 + 0.125
    accelerator.synchronize()

    assert pjrt.programs_compiled() > before
    assert y.sum().item() == 15.375


@pytest.mark.parametrize(
    "name", ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"]
)
def test_memory_is_that_of_the_device_module(name: str) -> None:
    x = torch.ones(1000, device="pjrt")
    accelerator.synchronize()

    assert getattr(accelerator, name)() == getattr(pjrt, name)() >= 4 * x.numel()


def test_statistics_of_memory_have_the_names_of_cuda() -> None:
    stats = accelerator.memory_stats()

    assert stats["allocated_bytes.all.current"] == pjrt.memory_allocated()


def test_peak_starts_anew() -> None:
    x = torch.ones(1_000_000, device="pjrt")
    accelerator.synchronize()
    del x

    accelerator.reset_peak_memory_stats()

    assert accelerator.max_memory_allocated() == accelerator.memory_allocated()


def test_what_has_nothing_to_do_is_accepted() -> None:
    accelerator.empty_cache()
    accelerator.reset_accumulated_memory_stats()


@pytest.mark.skipif(not hasattr(accelerator, "get_memory_info"), reason="not in this PyTorch")
def test_free_memory_is_less_than_all() -> None:
    free, total = accelerator.get_memory_info()

    assert 0 < free < total


@pytest.mark.skipif(not hasattr(accelerator, "get_device_capability"), reason="not in this PyTorch")
def test_capability_lists_the_dtypes_of_tensors() -> None:
    supported = accelerator.get_device_capability()["supported_dtypes"]

    assert {torch.float32, torch.int64, torch.bfloat16} <= supported
    assert torch.quint8 not in supported


# Functions of `torch.accelerator` that need no device, as calls; and those that do, or give an object of it.
STARTS_NOTHING = {
    "is_available": "is_available()",
    "device_count": "device_count()",
    "current_accelerator": "current_accelerator()",
    "current_device_index": "current_device_index()",
    "current_device_idx": "current_device_idx()",
    "set_device_index": "set_device_index(0)",
    "set_device_idx": "set_device_idx(0)",
    "device_index": "device_index(0).__enter__()",
    "synchronize": "synchronize()",
    "empty_cache": "empty_cache()",
    "empty_host_cache": "empty_host_cache()",
    "memory_allocated": "memory_allocated()",
    "max_memory_allocated": "max_memory_allocated()",
    "memory_reserved": "memory_reserved()",
    "max_memory_reserved": "max_memory_reserved()",
    "memory_stats": "memory_stats()",
    "reset_peak_memory_stats": "reset_peak_memory_stats()",
    "reset_accumulated_memory_stats": "reset_accumulated_memory_stats()",
}
STARTS = {"current_stream", "set_stream", "get_memory_info", "get_device_capability", "Graph"}


def test_of_each_function_it_is_known_whether_it_starts_the_device() -> None:
    assert {*STARTS_NOTHING, *STARTS} >= set(accelerator.__all__)


def test_nothing_is_started_by_asking(python: Any) -> None:
    calls = [call for name, call in STARTS_NOTHING.items() if hasattr(accelerator, name)]
    python(
        "import sys, torch\n"
        f"for call in {calls}:\n"
        "    eval(f'torch.accelerator.{call}')\n"
        "    assert not torch.pjrt.is_initialized(), call\n"
        "    assert 'jax' not in sys.modules, call\n"
        "assert torch.accelerator.current_device_index() == 0\n"
        "assert torch.accelerator.memory_allocated() == 0\n"
    )


def test_the_index_of_a_block_is_the_one_there_is() -> None:
    with accelerator.device_index(0):
        assert accelerator.current_device_index() == 0
    with accelerator.device_index(None):
        assert accelerator.current_device_index() == 0
    with pytest.raises(RuntimeError, match="one device"), accelerator.device_index(1):
        pass
