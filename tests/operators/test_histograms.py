"""Integers are counted, as on other accelerators; the CPU's kernel refuses them."""

from __future__ import annotations

import torch


def test_integers_are_counted_in_their_own_dtype() -> None:
    x = torch.tensor([0, 2, 2, 3, 7], dtype=torch.int32)

    counts = torch.histc(x.to("pjrt"), bins=4, min=0, max=3)

    assert counts.dtype == torch.int32
    assert counts.tolist() == torch.histc(x.float(), bins=4, min=0, max=3).tolist()
