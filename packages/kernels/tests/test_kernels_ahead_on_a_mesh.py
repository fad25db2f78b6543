"""Compiled ahead for TPUs, programs that XLA splits have kernels, and nothing is gathered for them."""

from __future__ import annotations

import re
from typing import Any

import jax
import pytest
import torch
from jax.experimental import pallas as pl
from torch.nn.functional import linear, scaled_dot_product_attention

import torch_pjrt
from torch_pjrt_kernels import pallas_op, ragged_paged_attention, rotary

pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")
spmd = pytest.importorskip("torch_pjrt_spmd", reason="a mesh is of torch-pjrt-spmd")

BATCH, HEADS, KEY_HEADS, LENGTH, WIDTH = 4, 8, 4, 2048, 128
GATHERS = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def like(*shape: int, spec: Any = (), dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    mesh = spmd.Mesh((2, 2), ("data", "model"), target="v5e:2x2")
    x = torch.empty(*shape, device="meta", dtype=dtype)
    return spmd.mark_sharding(x, mesh, spec)


def shapes_of_calls(text: str) -> set[str]:
    """What kernels give in a program's text."""
    found = re.findall(r"= ([^=]*) custom-call\([^\n]*tpu_custom_call", text)
    return {shape for of_call in found for shape in re.findall(r"\w+\[[\d,]+\]", of_call)}


def test_layers_whose_weights_are_spread_have_the_kernels_of_attention_and_rotary_positions() -> (
    None
):
    """Forward and backward: each chip has half of the batch, and half of the heads."""
    width = HEADS * WIDTH
    rows = (width, KEY_HEADS * WIDTH, KEY_HEADS * WIDTH)
    weights = [like(n, width, spec=("model",)) for n in rows]
    weights.append(like(width, width, spec=(None, "model")))
    tables = [like(LENGTH, WIDTH) for _ in range(2)]

    def step(x: torch.Tensor, *given: torch.Tensor) -> Any:
        leaves = [w.detach().requires_grad_() for w in given[:4]]
        for _ in range(2):
            q, k, v = (linear(x, w).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for w in leaves[:3])
            q, k = rotary(q, *given[4:]), rotary(k, *given[4:])
            y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + linear(y.transpose(1, 2).flatten(2), leaves[3])
        return torch.autograd.grad(x.float().square().sum(), leaves)

    x = like(BATCH, LENGTH, width, spec=("data",))
    compiled = torch_pjrt.compile_for("v5e:2x2", step, x, *weights, *tables)

    text = compiled.text()
    assert not any(name in text for name in GATHERS)
    assert shapes_of_calls(text) >= {"bf16[2,4,2048,128]", "bf16[2,2,2048,128]"}
    assert f"bf16[{BATCH},{HEADS},{LENGTH},{WIDTH}]" not in text
    assert compiled.temporary_bytes < 32e6  # all scores of a chip would take 134 MB


def test_ragged_attention_is_split_by_key_heads() -> None:
    query = like(64, 16, 128, spec=(None, "model"))
    pages = like(256, 16, 8, 128, spec=(None, None, "model"))
    rest = [like(*s, dtype=torch.int32) for s in ((8, 32), (8,), (9,))]

    def attend(q: torch.Tensor, kv: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return ragged_paged_attention(q, kv, None, *others)

    text = torch_pjrt.compile_for("v5e:2x2", attend, query, pages, *rest).text()

    assert not any(name in text for name in GATHERS)
    assert "bf16[64,8,128]" in shapes_of_calls(text)


def test_a_kernel_of_ones_own_is_split_by_its_rule() -> None:
    @pallas_op("ahead_on_a_mesh::doubled", sharding_rule="rows width -> rows width")
    def doubled(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, y_ref: Any) -> None:
            y_ref[...] = x_ref[...] * 2

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x = like(512, 512, spec=("data", "model"), dtype=torch.float32)
    text = torch_pjrt.compile_for("v5e:2x2", lambda x: doubled(x.sin()), x).text()

    assert not any(name in text for name in GATHERS)
    assert shapes_of_calls(text) == {"f32[256,256]"}
