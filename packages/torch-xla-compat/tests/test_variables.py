"""Variables of torch_xla, in a process that imports it."""

from __future__ import annotations

import os

import pytest

import warm


def printed(script: str, **variables: str) -> str:
    done = warm.run(["-c", script], {**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_folder_of_programs_is_the_one_of_torch_xla() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_PJRT_CACHE_DIR"}
    script = "import torch_xla, torch_pjrt; print(torch_pjrt.config.cache_dir)"
    done = warm.run(["-c", script], {**environment, "XLA_PERSISTENT_CACHE_PATH": "/somewhere/else"})
    assert done.stdout.strip() == "/somewhere/else"


def test_debugging_logs_recompilations() -> None:
    script = "import torch_xla, torch_pjrt; print(sorted(torch_pjrt.config.log))"
    assert "['recompile', 'sync']" in printed(
        script, PT_XLA_DEBUG="1", TORCH_PJRT_LOG="recompile,sync"
    )


@pytest.mark.parametrize("name", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_USE_32BIT_LONG"])
def test_what_would_change_results_is_a_warning(name: str) -> None:
    assert f"The variable {name} does nothing" in printed("import torch_xla", **{name: "1"})


def test_the_variable_of_spmd_turns_it_on() -> None:
    script = "import torch_xla; print(torch_xla.runtime.is_spmd(), torch_xla.runtime.world_size())"
    assert "True 1" in printed(script, XLA_USE_SPMD="1")


def test_device_strings_can_be_left_alone() -> None:
    script = "import torch; to = torch.Tensor.to; import torch_xla; print(torch.Tensor.to is to)"
    assert "True" in printed(script, TORCH_PJRT_XLA_STRINGS="0")
    assert "False" in printed(script)
