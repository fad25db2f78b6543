"""Where no plugin offers a device, `import torch` works and the first tensor says what to install."""

from __future__ import annotations

import os
import subprocess

import warm

# Allows a plugin that is not there: nothing but the core is loaded, whatever is installed.
CORE_ALONE = {"TORCH_PJRT_PLUGINS": "nothing-but-the-core"}


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PJRT_DEVICE"}
    return warm.run(arguments, env | CORE_ALONE | variables)


def test_import_torch_works_and_says_that_no_device_is_there() -> None:
    done = python("-c", "import torch; print(torch.pjrt.is_available(), torch.pjrt.device_count())")

    assert (done.returncode, done.stdout.split()) == (0, ["False", "0"]), done.stderr


def test_torch_on_the_cpu_works_without_jax() -> None:
    done = python(
        "-c",
        "import sys, torch; torch.manual_seed(0); torch.nn.Linear(2, 3)(torch.ones(1, 2)).sum()"
        ".backward(); print('jax' in sys.modules)",
    )

    assert (done.returncode, done.stdout.split()) == (0, ["False"]), done.stderr


def test_first_tensor_raises_no_device_with_a_hint() -> None:
    for make in ("torch.ones(2, device='pjrt')", "torch.ones(2).to('pjrt')"):
        done = python("-c", f"import torch; {make}")

        assert done.returncode == 1
        assert "NoDevice: No device for `pjrt` tensors is usable here." in done.stderr
        assert "hint: pip install torch-pjrt (the CPU device)" in done.stderr


def test_it_is_raised_each_time_and_not_only_the_first() -> None:
    done = python(
        "-c",
        "import torch\n"
        "for _ in range(2):\n"
        "    try: torch.ones(2, device='pjrt')\n"
        "    except RuntimeError as error: print(type(error).__name__)",
    )

    assert done.stdout.split() == ["NoDevice", "NoDevice"], done.stderr


def test_commands_list_the_core_and_exit_with_1() -> None:
    plugins = python("-m", "torch_pjrt", "plugins")

    assert plugins.returncode == 1
    assert plugins.stdout.startswith("core")
    assert "NoDevice: " in plugins.stderr
    assert python("-m", "torch_pjrt", "devices").returncode == 1


def test_command_with_a_setting_that_cannot_be_read_exits_with_2() -> None:
    done = python("-m", "torch_pjrt", "plugins", TORCH_PJRT_PLUGINS="a,-b")

    assert done.returncode == 2
    assert done.stderr.startswith("SettingError: TORCH_PJRT_PLUGINS cannot be read.")


def test_unknown_command_exits_with_2_and_names_the_known_ones() -> None:
    done = python("-m", "torch_pjrt", "plugin")

    assert done.returncode == 2
    assert "choose from" in done.stderr
    assert "plugins" in done.stderr
