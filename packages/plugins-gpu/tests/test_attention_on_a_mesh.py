"""Compiled ahead for several cards, programs that XLA splits have cuDNN's attention, of each card's parts."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

import torch_pjrt

spmd = pytest.importorskip("torch_pjrt_spmd", reason="a mesh is of torch-pjrt-spmd")

HAS_PLUGIN = find_spec("jax_plugins") is not None and any(
    find_spec(f"jax_plugins.xla_cuda{n}") for n in (12, 13)
)
pytestmark = pytest.mark.skipif(
    not HAS_PLUGIN or os.environ.get("JAX_PLATFORMS") != "cpu",
    reason="JAX's CUDA plugin is not installed (`hatch run aot:run` does), or JAX_PLATFORMS is not `cpu`",
)

TARGET = "h100:4"
BATCH, HEADS, LENGTH, WIDTH = 4, 8, 1024, 64
GATHERS = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def like(*shape: int, spec: Any = (), dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    mesh = spmd.Mesh((2, 2), ("data", "model"), target=TARGET)
    return spmd.mark_sharding(torch.empty(*shape, device="meta", dtype=dtype), mesh, spec)


def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> Any:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    form: dict[str, Any] = {"attn_mask": mask[0]} if mask else {"is_causal": True}
    attend: Any = scaled_dot_product_attention
    y = attend(*leaves, **form, enable_gqa=True)
    return torch.autograd.grad(y.float().square().sum(), leaves)


def results_of_calls(text: str) -> set[str]:
    """What the kernels give in a program's text."""
    found = re.findall(r"= ([^=]*) custom-call\([^\n]*__cudnn\$fmha", text)
    return {shape for of_call in found for shape in re.findall(r"bf16\[[\d,]+\]", of_call)}


@pytest.mark.parametrize("key_heads", [8, 2])
def test_each_card_computes_its_batches_and_heads(key_heads: int) -> None:
    spec = ("data", "model")
    q = like(BATCH, HEADS, LENGTH, WIDTH, spec=spec)
    k, v = (like(BATCH, key_heads, LENGTH, WIDTH, spec=spec) for _ in range(2))

    compiled = torch_pjrt.compile_for(TARGET, step, q, k, v)

    text = compiled.text()
    assert not any(name in text for name in GATHERS)
    assert results_of_calls(text) == {"bf16[2,4,1024,64]", f"bf16[2,{key_heads // 2},1024,64]"}
    assert compiled.temporary_bytes < 16e6  # all scores of a card take 34 MB


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16])
def test_a_mask_that_all_share_changes_nothing_of_that(dtype: torch.dtype) -> None:
    q = like(BATCH, HEADS, LENGTH, WIDTH, spec=("data", "model"))
    mask = like(LENGTH, LENGTH, dtype=dtype)

    text = torch_pjrt.compile_for(TARGET, step, q, q, q, mask).text()

    assert not any(name in text for name in GATHERS)
    assert "bf16[2,4,1024,64]" in results_of_calls(text)


def test_layers_whose_weights_are_spread_have_it_too() -> None:
    """How heads lie follows from the weights; there is no exchange but sums."""
    width = HEADS * WIDTH
    weights = [like(width, width, spec=("model",)) for _ in range(3)]
    weights.append(like(width, width, spec=(None, "model")))

    def layers(x: torch.Tensor, *given: torch.Tensor) -> Any:
        leaves = [w.detach().requires_grad_() for w in given]
        for _ in range(2):
            q, k, v = (linear(x, w).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for w in leaves[:3])
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(y.transpose(1, 2).flatten(2), leaves[3])
        return torch.autograd.grad(x.float().square().sum(), leaves)

    text = torch_pjrt.compile_for(
        TARGET, layers, like(BATCH, LENGTH, width, spec=("data",)), *weights
    ).text()

    assert not any(name in text for name in GATHERS)
    assert results_of_calls(text) == {"bf16[2,4,1024,64]"}


def test_keys_that_are_not_split_as_queries_are() -> None:
    """JAX's own rule refuses them while XLA compiles; the kernels package maps the call."""
    pytest.importorskip("torch_pjrt_kernels", reason="it maps the call over chips")
    q = like(BATCH, HEADS, LENGTH, WIDTH, spec=("data", "model"))
    k, v = (like(BATCH, 1, LENGTH, WIDTH, spec=("data",)) for _ in range(2))

    text = torch_pjrt.compile_for(TARGET, step, q, k, v).text()

    assert not any(name in text for name in GATHERS)
    assert results_of_calls(text) == {"bf16[2,4,1024,64]", "bf16[2,1,1024,64]"}
