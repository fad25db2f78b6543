"""Operators whose rule is core's are padded in compiled graphs, though NaN lies behind the elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import torch_pjrt_dynamo
from torch_pjrt_dynamo import padding

Tensor = torch.Tensor

WEIGHTS = torch.randn(5, 2, 3, 3, generator=torch.Generator().manual_seed(0))
ON = {"cpu": WEIGHTS, "pjrt": WEIGHTS.to("pjrt")}

# Of images[n, 2, 6, 6].
OF_IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x, 2),
    "average pooling": lambda x: F.avg_pool2d(x, 2),
    "batch norm": lambda x: F.batch_norm(
        x, torch.ones(2, device=x.device), torch.ones(2, device=x.device)
    ),
    "convolution": lambda x: F.conv2d(x, ON[x.device.type]),
    "flip": lambda x: x.flip(1, 3),
    "glu": lambda x: F.glu(x, 1),
    "greatest so far": lambda x: x.cummax(0).values + x.cumsum(0),
    "group norm": lambda x: F.group_norm(x, 2),
    "max pooling": lambda x: F.max_pool2d(x, 2),
    "norms": lambda x: x.norm(dim=0) + x.norm(p=1),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "triangle": lambda x: x.triu(1) - x.tril(),
}
# Their backward has none: it sums over the batch, or turns it around.
WITHOUT_A_RULE = "batch norm", "greatest so far"


@pytest.fixture(autouse=True)
def garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        padding, "empty_capacity", lambda shape, dtype: np.full(shape, np.nan, dtype)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_IMAGES)
def test_results_and_gradients_are_right(name: str) -> None:
    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        result = OF_IMAGES[name](x)
        return result, result.sin().mean()

    compiled = torch.compile(loss, backend="pjrt")
    for n in (5, 7):
        x = torch.randn(n, 2, 6, 6, generator=torch.Generator().manual_seed(n)).requires_grad_()
        given = x.detach().to("pjrt").requires_grad_()
        torch._dynamo.mark_dynamic(given, 0)
        saw, wanted = compiled(given), loss(x)
        saw[1].backward()
        wanted[1].backward()
        assert given.grad is not None
        assert x.grad is not None
        torch.testing.assert_close(saw[0].cpu(), wanted[0])
        torch.testing.assert_close(given.grad.cpu(), x.grad)

    forward, backward = torch_pjrt_dynamo.shapes()[-2:]
    assert forward.reason is None, forward.reason
    assert (backward.reason is None) == (name not in WITHOUT_A_RULE), backward.reason
