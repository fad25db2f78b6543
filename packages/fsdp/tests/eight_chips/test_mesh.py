"""The chips that these tests are about are there."""

from __future__ import annotations

import torch

from torch_pjrt_spmd import Mesh, mark_sharding, sharding_of


def test_a_parameter_lies_in_eight_parts() -> None:
    mesh = Mesh((8,), ("fsdp",))
    weight = torch.nn.Parameter(torch.arange(16.0, device="pjrt").reshape(8, 2))

    mark_sharding(weight, mesh, ("fsdp", None))

    assert sharding_of(weight) is not None
    assert weight.sum().item() == 120
