"""Meta functions that some versions of PyTorch lack are ours there, and look like PyTorch's own elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torch_pjrt.tensor.recording.metas import MISSING, missing


def arguments(op: Any) -> tuple[Any, ...]:
    """Of a call of an operator of `MISSING`, on the meta device."""
    x = torch.empty(2, 3, 5, 4, device="meta")
    if op is torch.ops.aten._standard_gamma.default:
        return (x,)
    bias, sums, seed = (torch.empty(s, device="meta") for s in ((2, 3, 5, 5), (2, 3, 5), ()))
    mask = [True, True, True, True]
    return x, x, x, x, bias, mask, x, sums, None, None, 5, 5, 0.0, False, seed, seed


@pytest.mark.parametrize("op", MISSING, ids=str)
def test_every_version_has_them_once_there_is_a_device(op: Any) -> None:
    torch.zeros((), device="pjrt")

    seen, ours = op(*arguments(op)), MISSING[op](*arguments(op))

    assert not missing()
    looks = [
        [None if x is None else (x.shape, x.dtype, x.device, x.stride()) for x in results]
        for results in ((seen, ours) if isinstance(ours, tuple) else ([seen], [ours]))
    ]
    assert looks[0] == looks[1]


def test_draws_of_a_gamma_distribution_are_compiled() -> None:
    compiled = torch.compile(torch._standard_gamma, backend="pjrt", fullgraph=True)

    drawn = compiled(torch.full((1000,), 2.0, device="pjrt"))

    assert 1.5 < float(drawn.mean()) < 2.5
