"""A program that fails loses what it would have given, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.compile import build
from torch_pjrt.errors import LostValue, WrongLowering


def test_after_a_program_that_fails_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = build.apply

    def failing(node: Any, *rest: Any) -> Any:
        if node.op is torch.ops.aten.erfinv.default:
            raise WrongLowering("as if its rule were broken")
        return apply(node, *rest)

    monkeypatch.setattr(build, "apply", failing)
    kept = torch.zeros(2, device="pjrt")
    torch_pjrt.sync()
    kept.add_(1)
    others = [kept * i for i in range(5)]
    broken = torch.erfinv(kept)
    with pytest.raises(WrongLowering, match="broken"):
        torch_pjrt.sync()
    torch_pjrt.sync()
    assert kept.tolist() == [1, 1]
    assert [x[0].item() for x in others] == [0, 1, 2, 3, 4]
    with pytest.raises(LostValue, match="as if its rule"):
        broken.cpu()
    with pytest.raises(LostValue, match="as if its rule"):
        _ = broken + 1
    kept.add_(1)
    assert kept.tolist() == [2, 2]
