"""Operators on sharded tensors give what they give on one chip."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_pjrt_spmd import Mesh, mark_sharding

#   name             of x (16, 8) floats, i (16,) integers below 8
CALLS: dict[str, Any] = {
    "mm":            lambda x, i: x @ x.t(),
    "sort":          lambda x, i: x.sort(0),
    "topk":          lambda x, i: x.topk(3, 0),
    "cumsum":        lambda x, i: x.cumsum(0),
    "cat":           lambda x, i: torch.cat([x, x[:3]]),
    "stack":         lambda x, i: torch.stack([x, x + 1]),
    "gather":        lambda x, i: x.gather(1, i[:, None]),
    "index":         lambda x, i: x[i],
    "embedding":     lambda x, i: F.embedding(i, x),
    "index_add":     lambda x, i: x.index_add(0, i, x),
    "nonzero":       lambda x, i: (x > 0).nonzero(),
    "masked_select": lambda x, i: x[x > 0].sum() + x[x > 0].numel(),
    "unique":        lambda x, i: i.unique(return_counts=True),
    "qr":            lambda x, i: [t.abs() for t in torch.linalg.qr(x)],
    "svdvals":       lambda x, i: torch.linalg.svdvals(x),
    "softmax":       lambda x, i: x.softmax(0),
    "layer_norm":    lambda x, i: F.layer_norm(x, (8,)),
    "conv1d":        lambda x, i: F.conv1d(x[None], x[:4].reshape(2, 16, 1)),
    "roll":          lambda x, i: x.roll(3, 0),
    "flip":          lambda x, i: x.flip(0),
    "tril":          lambda x, i: x.tril(),
    "slice":         lambda x, i: x[3:11:2, 1:],
    "view":          lambda x, i: x.view(4, 4, 8).transpose(0, 2).reshape(-1),
    "argmax":        lambda x, i: x.argmax(),
    "median":        lambda x, i: x.median(0),
    "var":           lambda x, i: x.var(0),
    "one_hot":       lambda x, i: F.one_hot(i, 8),
    "cross_entropy": F.cross_entropy,
    "attention":     lambda x, i: F.scaled_dot_product_attention(*[x.view(1, 2, 8, 8)] * 3, is_causal=True),
    "fft":           lambda x, i: torch.fft.fft(x).abs(),
    "bfloat16":      lambda x, i: (x.bfloat16() * 2).float(),
    "int64":         lambda x, i: i * 3_000_000_000,
    "where":         lambda x, i: torch.where(x > 0, x, -x),
    "scatter":       lambda x, i: x.scatter(1, i[:, None], 0.0),
    "einsum":        lambda x, i: torch.einsum("ab,cb->ac", x, x),
    "item":          lambda x, i: torch.tensor(x[2, 3].item() + i.max().item()),
    "cdist":         lambda x, i: torch.cdist(x, x),
    "searchsorted":  lambda x, i: torch.searchsorted(x[:, 0].sort().values, x[:, 1].contiguous()),
}  # fmt: skip
SPECS = [("data", "model"), (("data", "model"),), (None, "model")]


def flat(x: Any) -> list[torch.Tensor]:
    return [t.cpu() for t in (x if isinstance(x, (tuple, list)) else [x])]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_operator_gives_what_it_gives_on_the_cpu(name: str) -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 8, generator=generator)
    i = torch.randint(0, 8, (16,), generator=generator)
    expected = flat(CALLS[name](x, i))

    for spec in SPECS:
        ours = mark_sharding(x.to("pjrt"), mesh, spec)
        indices = mark_sharding(i.to("pjrt"), mesh, spec[:1])
        found = flat(CALLS[name](ours, indices))
        for a, b in zip(found, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
