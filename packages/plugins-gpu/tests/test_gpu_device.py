"""The GPU device is preferred to the CPU where it is usable, and takes memory only as it is needed."""

from __future__ import annotations

import pytest
from jaxlib import gpu_solver

from torch_pjrt.errors import DeviceError
from torch_pjrt.plugin import jax_backend  # noqa: TID251
from torch_pjrt.testing.hosts import Host
from torch_pjrt_gpu import plugin
from torch_pjrt_gpu.foreign_calls import foreign_calls
from torch_pjrt_gpu.plugin import Gpu
from torch_pjrt_gpu.probe import STACKS, Finding


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PJRT_DEVICE", "XLA_PYTHON_CLIENT_PREALLOCATE", "TORCH_PJRT_CLIENT_OPTIONS"):
        monkeypatch.delenv(variable, raising=False)


def test_plugin_offers_one_device_and_starts_nothing() -> None:
    [offer] = Host({"gpu": plugin}).offers()

    assert (offer.device.name, offer.device.priority) == ("GPU", 200)


def test_objection_is_that_of_the_probe() -> None:
    assert Gpu(Finding(None, "no card")).objection() == "no card"
    assert Gpu(Finding(STACKS[0], None, "jax-cuda13-plugin")).objection() is None


def test_memory_is_not_preallocated_unless_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Gpu(Finding(STACKS[0], None))
    assert device.client_options()["preallocate"] is False

    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.5")
    assert device.client_options()["preallocate"] is True
    assert device.client_options()["memory_fraction"] == 0.5


def test_client_is_asked_for_the_platform_of_the_card() -> None:
    names = [Gpu(Finding(stack, None)).client_options()["platform_name"] for stack in STACKS]

    assert names == ["cuda", "ROCM"]


def test_start_takes_the_client_that_jax_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def local_devices(self) -> list[str]:
            return ["the chip of JAX"]

    monkeypatch.setattr(jax_backend, "started_by_jax", {"cuda": Client()}.get)

    assert list(Gpu(Finding(STACKS[0], None)).start()) == ["the chip of JAX"]


def test_missing_plugin_is_an_error_in_words() -> None:
    with pytest.raises(DeviceError, match="JAX has no platform `rocm`"):
        Gpu(Finding(STACKS[1], None)).start()


@pytest.mark.parametrize("stack", ["CUDA", "ROCM"])
def test_programs_from_disk_may_call_what_jax_registers_for_the_card(
    monkeypatch: pytest.MonkeyPatch, stack: str
) -> None:
    targets = [("cusolver_potrf_ffi", None, 1), ("cuhybrid_eig_real", None, 1)]
    monkeypatch.setattr(gpu_solver, "registrations", lambda: {stack: targets})
    monkeypatch.setattr(gpu_solver, "initialize_hybrid_kernels", lambda: "done")

    rows = foreign_calls(stack)

    def set_ups(target: str) -> list[object]:
        return [row.set_up and row.set_up() for row in rows if row.has(target)]

    assert set_ups("cusolver_potrf_ffi") == set_ups("__cudnn$fmhaSoftmaxBackward") == [None]
    assert set_ups("cuhybrid_eig_real") == ["done"]
    assert set_ups("xla_ffi_python_gpu_callback") == []
