"""Dynamo is imported by who compiles, or by PyTorch's optimizers, and not by the shapes of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Python = Callable[..., Any]

# By names of their own: the first that imports Dynamo is said.
CALLS = """
calls = {
    "add": lambda: x + 1, "mul": lambda: x * x, "div": lambda: x / 3, "floor": lambda: x // 2,
    "sum": lambda: x.sum(), "mean": lambda: x.mean(0), "std": lambda: x.std(), "pow": lambda: x**2,
    "softmax": lambda: x.softmax(-1), "linear": lambda: F.linear(x, x), "mm": lambda: x @ x.T,
    "gelu": lambda: F.gelu(x), "layer_norm": lambda: F.layer_norm(x, (8,)), "cat": lambda: torch.cat([x, x]),
    "where": lambda: torch.where(x > 0, x, 0.0), "index": lambda: x[torch.tensor([0, 1])],
    "half": lambda: x.half(), "repr": lambda: repr(x), "pad": lambda: F.pad(x, (1, 1)),
    "conv": lambda: F.conv1d(x[None], torch.ones(2, 4, 3, device="pjrt")),
    "loss": lambda: F.cross_entropy(x, torch.tensor([0, 1, 2, 3]).to("pjrt")),
    "attention": lambda: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "argmax": lambda: x.argmax(), "sort": lambda: x.sort(), "topk": lambda: x.topk(2),
    "rand": lambda: torch.rand(3, device="pjrt"), "dropout": lambda: F.dropout(x),
    "fft": lambda: torch.fft.fft(x),
    "embedding": lambda: F.embedding(torch.tensor([1, 2]).to("pjrt"), x), "cumsum": lambda: x.cumsum(0),
    "batch_norm": lambda: F.batch_norm(x, None, None, training=True), "norm": lambda: torch.linalg.norm(x),
    "item": lambda: x.sum().item(), "einsum": lambda: torch.einsum("ab,cb->ac", x, x),
    "backward": lambda: torch.nn.Linear(8, 8).to("pjrt")(x).sum().backward(),
    "clamp": lambda: x.clamp(0, 1),
    "interpolate": lambda: F.interpolate(x[None], scale_factor=2.0), "add_": lambda: x.clone().add_(1),
    "out": lambda: torch.add(x, 1, out=torch.empty_like(x)),
    "foreach": lambda: torch._foreach_mul([x, x], 2.0),
}
"""
SCRIPT = (
    """
import sys, types
import torch, torch.nn.functional as F
import torch_pjrt

x = torch.randn(4, 8, device="pjrt")
"""
    + CALLS
    + """
for name, call in calls.items():
    call()
    assert "torch._dynamo" not in sys.modules, name
torch_pjrt.sync()
print(len(calls))

import gc, torch._dynamo
beside_itself = [
    f for f in gc.get_objects()
    if isinstance(f, types.FunctionType) and f.__dict__.get("__dynamo_disable") is f
]
assert not beside_itself, beside_itself[:3]
for call in calls.values():
    call()
compiled = torch.compile(lambda x: torch._refs.add(x, 1).sigmoid() * 2, backend="pjrt")
torch.testing.assert_close(compiled(x), (x + 1).sigmoid() * 2)
"""
)


def test_operators_import_no_dynamo_and_it_finds_all_as_ever(python: Python) -> None:
    assert int(python(SCRIPT, fresh=True).stdout) > 30
