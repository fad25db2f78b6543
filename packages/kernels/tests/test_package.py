"""The names of the package are there and documented, and importing it starts nothing."""

from __future__ import annotations

import os

import torch

import torch_pjrt_kernels
import warm


def test_each_name_is_there_and_documented() -> None:
    assert sorted(torch_pjrt_kernels._LAZY) == torch_pjrt_kernels.__all__
    for name in torch_pjrt_kernels.__all__:
        assert getattr(torch_pjrt_kernels, name).__doc__
        assert name in (torch_pjrt_kernels.__doc__ or "")


def test_importing_it_imports_no_jax() -> None:
    script = "import sys, torch_pjrt_kernels; assert 'jax' not in sys.modules, 'JAX was imported'"

    done = warm.run(["-c", script], os.environ)

    assert done.returncode == 0, done.stderr


def test_a_second_device_gets_rules_too() -> None:
    from torch.nn.attention import varlen
    from torch.nn.attention.flex_attention import flex_attention

    from torch_pjrt.plugin import client
    from torch_pjrt_kernels.plugin import torch_pjrt_lowerings

    torch.zeros(1, device="pjrt")  # starts the device
    tables = [torch_pjrt_lowerings(client().device) for _ in range(2)]

    assert None not in tables, (varlen, flex_attention)
