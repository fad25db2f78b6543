"""The tests of `torch.distributed` and of DDP that PyTorch's wheel carries."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt_spmd.testing.distributed_suite.redirect import DEVICE, load

_theirs: Any = load("torch.testing._internal.distributed.distributed_test")
# How long processes wait for each other between two tests: theirs is too short for a busy machine.
_theirs.Barrier.sync.__func__.__defaults__ = (None, 60)


class Tests(_theirs.TestDistBackend, _theirs.DistributedTest._DistTestBase):
    @classmethod
    def on_joining(cls) -> None:
        """Once this process is one of the run: what the file made as it was loaded goes to the device."""
        for value in vars(_theirs).values():
            if isinstance(value, torch.nn.Module):
                value.to(DEVICE)
