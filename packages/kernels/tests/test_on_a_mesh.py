"""On a mesh attention in blocks, and the loss in chunks, stay where their batches and heads are."""

from __future__ import annotations

import os

import pytest

import warm
from torch_pjrt.testing.quick import quick_flags

SCRIPT = """
import torch, torch_pjrt
import torch.nn.functional as F
from torch_pjrt_kernels import linear_cross_entropy
from torch_pjrt_spmd import Mesh, mark_sharding

mesh = Mesh((2, 2), ("data", "model"))
torch.manual_seed(0)
triple = [torch.randn(2, 4, 1024, 16) for _ in range(3)]

def attended(inputs):
    leaves = [x.requires_grad_() for x in inputs]
    y = F.scaled_dot_product_attention(*leaves, is_causal=True)
    return [y, *torch.autograd.grad(y.square().sum(), leaves)]

def on_the_mesh():
    return attended([mark_sharding(x.to("pjrt"), mesh, ("data", "model")) for x in triple])

explained = torch_pjrt.explain(on_the_mesh)
for ours, theirs in zip(explained.result, attended(triple), strict=True):
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)
text = str(explained)
assert "in blocks" in text, text
for collective in ("all-gather", "all-to-all", "collective-permute"):
    assert collective not in text, text

hidden, weight = torch.randn(64, 8), torch.randn(1000, 8)
target = torch.randint(1000, (64,))

def losses(hidden, weight, target, loss):
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    found = loss(*leaves, target)
    return [found, *torch.autograd.grad(found, leaves)]

spread = mark_sharding(hidden.to("pjrt"), mesh, ("data",))
ours = losses(spread, weight.to("pjrt"), target.to("pjrt"), linear_cross_entropy)
theirs = losses(hidden, weight, target, lambda h, w, t: F.cross_entropy(h @ w.T, t))
for mine, its in zip(ours, theirs, strict=True):
    torch.testing.assert_close(mine.cpu(), its, rtol=1e-5, atol=1e-5)
print("the same")
"""


def test_values_and_gradients_are_the_same_and_attention_exchanges_nothing() -> None:
    pytest.importorskip("torch_pjrt_spmd", reason="a mesh is of torch-pjrt-spmd")
    env = {
        **os.environ,
        "XLA_FLAGS": f"{quick_flags()} --xla_force_host_platform_device_count=4",
        "TORCH_PJRT_CACHE_DIR": "",
    }

    done = warm.run(["-c", SCRIPT], env)

    assert done.returncode == 0, done.stderr
    assert "the same" in done.stdout
