"""`import torch` makes the device known at next to no cost, and never fails because of it.

Each test is a process of its own: PyTorch is imported once in a process, and knows one such backend.
"""

from __future__ import annotations

import sys

import pytest

from fixture_types import Run

USE = "assert (torch.ones(2, device='pjrt') + 1).tolist() == [2, 2]\n"


def test_import_torch_makes_the_device_known(python: Run) -> None:
    python("import torch\n" + USE, fresh=True)


def test_import_torch_imports_no_jax_and_starts_no_device(python: Run) -> None:
    done = python(
        """
import sys
import torch
assert torch.pjrt.is_initialized() is False
print([m for m in sys.modules if m.split(".")[0] in ("jax", "jaxlib", "pluggy")])
assert "torch_pjrt.client.client" not in sys.modules
""",
        fresh=True,
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_asking_whether_there_is_a_device_starts_none(python: Run) -> None:
    python(
        """
import torch
assert torch.pjrt.is_available() and torch.pjrt.device_count() == 1
assert torch.accelerator.is_available()
torch.manual_seed(3)
torch.pjrt.synchronize()
assert not torch.pjrt.is_initialized()
torch.empty(1, device="pjrt")
assert torch.pjrt.is_initialized()
"""
    )


@pytest.mark.parametrize(
    "imports",
    [
        "import torch_pjrt",
        pytest.param("from torch_pjrt import report; report()", marks=pytest.mark.slow),
        pytest.param("import jax", marks=pytest.mark.slow),
    ],
)
def test_order_of_imports_does_not_matter(python: Run, imports: str) -> None:
    python(f"{imports}\nimport torch\n{USE}", fresh=True)


def test_loading_again_changes_nothing(python: Run) -> None:
    python(
        """
import torch, torch_pjrt
before = torch.pjrt
for _ in range(3):
    torch_pjrt.autoload()
assert torch.pjrt is before
import importlib, sys
importlib.reload(sys.modules["torch_pjrt.autoload"]).autoload()
assert sys.modules["torch_pjrt.autoload"].failure() is None
"""
        + USE
    )


def test_autoload_can_be_switched_off_and_done_by_hand(python: Run) -> None:
    done = python(
        f"""
import torch
assert not hasattr(torch, "pjrt")
import torch_pjrt
torch_pjrt.autoload()
{USE}
print("by hand")
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )

    assert done.stdout == "by hand\n"


TAKEN = """
import warnings
warnings.simplefilter("ignore")
import torch
torch.utils.rename_privateuse1_backend("theirs")
import torch_pjrt
torch_pjrt.autoload()
assert torch.ones(2).sum().item() == 2
"""


def test_backend_of_others_stays_theirs_and_the_cpu_works(python: Run) -> None:
    python(
        TAKEN + "assert torch._C._get_privateuse1_backend_name() == 'theirs'",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


@pytest.mark.parametrize("use", ["sync", "report"])
def test_use_says_that_another_package_has_the_backend(python: Run, use: str) -> None:
    script = TAKEN + f"torch_pjrt.{use}()"

    done = python(script, returncode=1, TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    assert "BackendTaken: Another package has registered PyTorch's PrivateUse1" in done.stderr
    assert "saw: the backend `theirs`" in done.stderr


def test_first_tensor_is_refused_where_another_package_has_the_backend(python: Run) -> None:
    script = TAKEN.replace('"ignore"', '"always"') + "torch.ones(1, device='pjrt')"

    done = python(script, returncode=1, TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    assert "UserWarning: The device `pjrt` is not there" in done.stderr
    assert "RuntimeError" in done.stderr  # PyTorch's own: it has no device of that name


def test_failure_of_the_registration_does_not_break_import_torch(python: Run) -> None:
    done = python(
        """
import builtins
imported = builtins.__import__
def broken(name, *args):
    if name == "torch_pjrt.device":
        raise OSError("disk on fire")
    return imported(name, *args)
builtins.__import__ = broken
import torch
assert torch.ones(2).sum().item() == 2
import torch_pjrt
torch_pjrt.sync()
""",
        returncode=1,
    )

    assert "The device `pjrt` is not there: disk on fire" in done.stderr
    assert done.stderr.splitlines()[-1] == "OSError: disk on fire"


def test_misspelt_setting_does_not_break_import_torch(python: Run) -> None:
    done = python(
        "import torch; print(torch.ones(2).sum().item()); torch.ones(1, device='pjrt') + 1",
        returncode=None,
        TORCH_PJRT_TAPE_LIMIT="many",
    )

    assert done.stdout == "2.0\n"
    assert "TORCH_PJRT_TAPE_LIMIT cannot be read" in done.stderr


@pytest.mark.slow
def test_users_own_jax_is_left_as_it_was(python: Run) -> None:
    done = python(
        f"""
import torch, jax, jax.numpy as jnp
before = dict(jax.config.values)
device = jax.devices()[0]
{USE}
x = torch.randn(4, 4, dtype=torch.float64).to("pjrt").requires_grad_()
(x @ x).sum().backward()
x.grad.cpu()
changed = {{k: (v, before[k]) for k, v in jax.config.values.items() if before.get(k) != v}}
print(changed, jax.default_backend(), jax.devices()[0] is device)
print(jnp.ones(2).dtype, jnp.arange(2).dtype, jax.jit(lambda a: a * 2.5)(1).dtype)
""",
        JAX_ENABLE_X64="0",
    )

    assert done.stdout.splitlines() == ["{} cpu True", "float32 int32 float32"]


def test_users_jax_with_64_bits_is_left_as_it_was(python: Run) -> None:
    done = python(
        f"""
import jax
jax.config.update("jax_enable_x64", True)
import torch, jax.numpy as jnp
{USE}
print(jax.config.jax_enable_x64, jnp.arange(2).dtype)
x = torch.ones(2, device="pjrt")
assert (x * 2).dtype == torch.float32 and (x / 3).cpu().dtype == torch.float32
"""
    )

    assert done.stdout == "True int64\n"


@pytest.mark.slow
def test_threads_may_use_the_device_at_the_same_time_as_jax(python: Run) -> None:
    done = python(
        """
import threading
import torch, jax, jax.numpy as jnp
torch.ones(1, device="pjrt")
seen = []
def use_jax():
    for _ in range(200):
        seen.append(str(jnp.ones(1).dtype))
thread = threading.Thread(target=use_jax)
thread.start()
for i in range(30):
    assert (torch.ones(3, dtype=torch.float64, device="pjrt") * i).sum().item() == 3 * i
thread.join()
print(set(seen))
""",
        JAX_ENABLE_X64="0",
    )

    assert done.stdout == "{'float32'}\n"


def test_autoload_module_needs_the_standard_library_alone(python: Run) -> None:
    done = python(
        """
import sys
before = set(sys.modules)
import torch_pjrt, torch_pjrt.autoload
print(sorted({m.split(".")[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))
""",
        fresh=True,
    )

    assert done.stdout.strip() == "['torch_pjrt']"


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_forked_child_without_a_started_device_can_start_its_own(python: Run) -> None:
    done = python(
        """
import os, torch
if os.fork() == 0:
    assert (torch.ones(2, device="pjrt") * 3).tolist() == [3, 3]
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    )

    assert done.stdout == "7\n"
