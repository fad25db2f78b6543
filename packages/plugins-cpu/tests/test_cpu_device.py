"""The CPU device is always usable, shares the XLA CPU client of the user's JAX, and starts when used."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

import jax
import pytest
import torch

import warm
from torch_pjrt.testing.hosts import Host
from torch_pjrt_cpu import plugin
from torch_pjrt_cpu.plugin import Cpu


@pytest.fixture(autouse=True)
def _no_device_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_DEVICE", raising=False)


def python(code: str, **variables: str) -> str:
    """What the code prints in a process of its own, where the device has not been started."""
    env = {k: v for k, v in os.environ.items() if k not in ("PJRT_DEVICE", "TORCH_PJRT_PLUGINS")}
    done = warm.run(["-c", code], env | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_entry_point_names_the_module_of_the_hooks() -> None:
    [found] = entry_points(group="torch_pjrt", name="cpu")

    assert found.load() is plugin


def test_it_is_chosen_where_nothing_better_is_installed() -> None:
    host = Host({"cpu": plugin})

    assert isinstance(host.chosen_device(), Cpu)
    assert isinstance(host.chosen_device("cpu"), Cpu)
    assert host.broken == []


def test_it_has_no_objection_and_the_lowest_priority_of_real_hardware() -> None:
    assert Cpu().objection() is None
    assert Cpu().priority == 0


def test_its_chips_are_those_of_the_cpu_client_of_jax() -> None:
    assert list(Cpu().start()) == jax.local_devices(backend="cpu")


def test_looking_for_it_does_not_import_jax() -> None:
    code = "import torch, sys; print(torch.pjrt.is_available(), 'jax' in sys.modules)"

    assert python(code) == "True False"


def test_it_starts_with_the_first_tensor() -> None:
    code = (
        "import torch; print(torch.pjrt.is_initialized());"
        "x = torch.ones(2, device='pjrt'); print(torch.pjrt.is_initialized());"
        "print((x + x).sum().item(), torch.pjrt.get_device_name())"
    )

    assert python(code).split() == ["False", "True", "4.0", "cpu"]


def test_default_device_and_types_of_the_users_jax_stay_as_they_were() -> None:
    code = (
        "import torch, jax; torch.ones(2, device='pjrt', dtype=torch.float64).sum().item();"
        "print(jax.default_backend(), jax.config.jax_enable_x64, jax.numpy.ones(2).dtype)"
    )

    assert python(code) == "cpu False float32"


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16, torch.complex64])
def test_every_width_of_numbers_is_real(dtype: torch.dtype) -> None:
    x = torch.arange(1, 7).to(dtype) * (2**40 + 1 if dtype == torch.int64 else 1)

    result = (x.to("pjrt") * 3).cpu()

    assert result.dtype == dtype
    torch.testing.assert_close(result, x * 3)
