"""The names of the package are there and documented, and importing it starts nothing."""

from __future__ import annotations

import os

import torch_pjrt_fsdp
import warm


def test_each_name_is_there_and_documented() -> None:
    assert sorted(torch_pjrt_fsdp._LAZY) == torch_pjrt_fsdp.__all__
    for name in torch_pjrt_fsdp.__all__:
        assert getattr(torch_pjrt_fsdp, name).__doc__
        assert name in (torch_pjrt_fsdp.__doc__ or "")


def test_importing_it_imports_no_jax() -> None:
    script = "import sys, torch_pjrt_fsdp; assert 'jax' not in sys.modules, 'JAX was imported'"

    done = warm.run(["-c", script], os.environ)

    assert done.returncode == 0, done.stderr
