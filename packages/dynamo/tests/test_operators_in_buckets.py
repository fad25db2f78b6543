"""Padding changes no result: what lies behind the true elements reaches none of them, be it NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import torch_pjrt_dynamo
from torch_pjrt_dynamo import padding

Tensor = torch.Tensor


def on_both(*shape: int) -> dict[str, Tensor]:
    """The same random tensor on each device."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return {"cpu": x, "pjrt": x.to("pjrt")}


W = on_both(4, 6)
TABLE = on_both(9, 6)


@pytest.fixture(autouse=True)
def garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN behind floats, and numbers that are no index into any tensor behind whole ones."""

    def capacity(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        value = np.nan if np.issubdtype(dtype, np.floating) else 113
        return np.full(shape, value, dtype)

    monkeypatch.setattr(padding, "empty_capacity", capacity)


def floats(n: int) -> Tensor:
    return torch.randn(3, n, 4, generator=torch.Generator().manual_seed(n))


def positions(n: int) -> Tensor:
    return torch.randint(0, 9, (3, n), generator=torch.Generator().manual_seed(n))


def attended(queries: Tensor, keys: Tensor, **how: Any) -> Tensor:
    """Attention of one head, whose values are its keys."""
    q, k = queries[:, None], keys[:, None]
    return F.scaled_dot_product_attention(q, k, k, **how)


# Of x[3, n, 4], where n varies.
OF_FLOATS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: (x * 2 + x.relu().exp(), x > 0),
    "sum": lambda x: (x.sum(1), x.sum(), x.sum((0, 1), keepdim=True)),
    "mean": lambda x: (x.mean(1), x.mean(), x.mean((1, 2)), x.mean(-1)),
    "mean in bfloat16": lambda x: x.bfloat16().mean(1).float(),
    "extremes": lambda x: (x.amax(1), x.amin((1, 2)), x.max(), x.max(1).values, x.argmin(1)),
    "variance": lambda x: (x.var(1), x.std((0, 1)), x.var(unbiased=False)),
    "truths": lambda x: ((x > 0).any(1), (x < 9).all(1), (x > 0).sum()),
    "products": lambda x: (x.cos().prod(1), x.logsumexp(1), x.norm()),
    "cumsum": lambda x: x.cumsum(1),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(-1)),
    "linear": lambda x: x @ W[x.device.type],
    "scores": lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
    "gram": lambda x: x.transpose(1, 2) @ x,
    "gram of rows": lambda x: x.reshape(-1, 4).t() @ x.reshape(-1, 4),
    "merged sum": lambda x: x.reshape(-1, 4).sum(0),
    "flat": lambda x: (x.reshape(-1).sum(), x.flatten(1).mean(1)),
    "first and last": lambda x: (x[:, 0] * 2, x[:, -1] * 2),
    "without the last": lambda x: (x[:, :-1].sum(1), x[:, 1:].mean(1)),
    "differences": lambda x: (x[:, 1:] - x[:, :-1]).abs().mean(),
    "the last one kept": lambda x: x[:, -1:] * 2,
    "with a first one": lambda x: torch.cat([x.new_ones(3, 1, 4), x], 1).softmax(1).sum(2),
    "padded": lambda x: F.pad(x, (0, 0, 1, 2), value=3.0).sum(1),
    "counting": lambda x: (x * torch.arange(x.shape[1], device=x.device)[None, :, None]).sum(1),
    "triangle": lambda x: (x @ x.transpose(1, 2)).tril().sum((1, 2)),
    "masked": lambda x: (
        (x @ x.transpose(1, 2))
        .masked_fill(torch.ones(x.shape[1], x.shape[1], device=x.device).triu(1).bool(), -1e9)
        .softmax(-1)
        .sum(1)
    ),
    "sizes as numbers": lambda x: (x * x.shape[1]).sum(1) / (x.shape[1] ** 0.5),
    "a size as a tensor": lambda x: x.sum(1) * torch.tensor(x.shape[1], device=x.device),
    "parts": lambda x: [part.sum(1) for part in x.split(2, -1)] + list(x.sum(1).unbind(0)),
    "stacked": lambda x: torch.stack([x, x + 1]).sum(2),
    "attention": lambda x: attended(x, x),
    "causal attention": lambda x: attended(x, x, is_causal=True),
    "attention without heads": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention to few": lambda x: attended(x, x[:, :2]),
    "attention of few": lambda x: attended(x[:, :2], x),
    "layer norm": lambda x: F.layer_norm(x, (4,)).mean(1),
    "expanded": lambda x: x.mean(1, keepdim=True).expand(x.shape).sum(1),
    "zeros": lambda x: (torch.zeros(x.shape[1], device=x.device) + x.sum((0, 2))).exp().sum(),
    "last indices": lambda x: x[:, torch.tensor([-1, 0], device=x.device)],
    "losses": lambda x: (F.mse_loss(x, x * 2), F.huber_loss(x, x + 1, reduction="sum")),
    "a loss by logits": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "as it is": lambda x: (x, x + 1),
}
# Of t[3, n], indices into a table of 9 rows.
OF_POSITIONS: dict[str, Callable[[Tensor], Any]] = {
    "embedding": lambda t: F.embedding(t, TABLE[t.device.type]).mean(1),
    "one hot": lambda t: (t[..., None] == torch.arange(9, device=t.device)).sum(1),
    "indexed": lambda t: TABLE[t.device.type][t].sum(1),
    "gathered": lambda t: TABLE[t.device.type][:3].gather(1, t % 6).sum(1),
    "length": lambda t: (t != 0).sum(1),
    "loss": lambda t: F.cross_entropy(
        TABLE[t.device.type][t[:, :-1]].flatten(0, 1), t[:, 1:].flatten() % 6
    ),
    "most": lambda t: (t.amax(1), t.argmax(1), t.max(1).indices),
}
SIZES = 5, 6, 7, 8, 13


def leaves(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else [leaf for part in x for leaf in leaves(part)]


def check(function: Callable[[Tensor], Any], make: Callable[[int], Tensor]) -> None:
    compiled = torch.compile(function, backend="pjrt")
    for n in SIZES:
        x = make(n)
        given = x.to("pjrt")
        torch._dynamo.mark_dynamic(given, 1)
        for saw, wanted in zip(leaves(compiled(given)), leaves(function(x)), strict=True):
            assert saw.stride() == wanted.stride()
            torch.testing.assert_close(saw.cpu(), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_FLOATS)
def test_it_is_right_and_padded(name: str) -> None:
    check(OF_FLOATS[name], floats)

    shapes = torch_pjrt_dynamo.shapes()[-1]
    assert shapes.reason is None, shapes.reason
    assert len(shapes.buckets) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_POSITIONS)
def test_it_is_right_and_padded_where_rows_are_looked_up(name: str) -> None:
    check(OF_POSITIONS[name], positions)

    shapes = torch_pjrt_dynamo.shapes()[-1]
    assert shapes.reason is None, shapes.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OF_FLOATS if name != "truths"])
def test_gradients_are_right(name: str) -> None:
    function = OF_FLOATS[name]

    def loss(x: Tensor) -> Tensor:
        results = [y for y in leaves(function(x * 0.2)) if y.is_floating_point()]
        return torch.stack([y.float().cos().sum() for y in results]).sum()

    compiled = torch.compile(loss, backend="pjrt")
    for n in (5, 7, 13):
        x = floats(n).requires_grad_()
        given = x.detach().to("pjrt").requires_grad_()
        torch._dynamo.mark_dynamic(given, 1)
        compiled(given).backward()
        loss(x).backward()
        assert given.grad is not None and x.grad is not None
        torch.testing.assert_close(given.grad.cpu(), x.grad)
