"""`rms_norm` is PyTorch's, with gradients; on a TPU a kernel computes it, which is interpreted here."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch.nn.functional import rms_norm as composed

import torch_pjrt
from torch_pjrt_kernels import rms_norm
from torch_pjrt_kernels.norms import rms_norm_tpu
from torch_pjrt_kernels.own.on_chip import traced_on_the_chip

ROWS, WIDTH = 48, 256


def given(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Input, weight, and the result's gradient."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((ROWS, WIDTH), (WIDTH,), (ROWS, WIDTH))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def exact(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """The result and the gradients, in float64, of inputs that are rounded."""
    x, w, grad = (t.double() for t in given(dtype))
    x, w = x.requires_grad_(), w.requires_grad_()
    y = composed(x, (WIDTH,), w, 1e-6)
    return [y.detach(), *torch.autograd.grad(y, (x, w), grad)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_pytorchs(dtype: torch.dtype) -> None:
    x, w, grad = (t.to("pjrt") for t in given(dtype))
    x, w = x.requires_grad_(), w.requires_grad_()

    y = rms_norm(x.view(3, -1, WIDTH), w)
    found = torch.autograd.grad(y, (x, w), grad.view(y.shape))

    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    for ours, theirs in zip((y.detach().view(x.shape), *found), exact(dtype), strict=True):
        assert ours.dtype == dtype
        scale = float(theirs.abs().max())
        torch.testing.assert_close(
            ours.cpu().double(), theirs, rtol=tolerance, atol=tolerance * scale / 4
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_kernel_computes_the_same(dtype: str) -> None:
    torch.zeros(1, device="pjrt")  # starts the device
    kind = getattr(torch, dtype)
    x, w, grad = (jnp.asarray(t.float().numpy()).astype(dtype) for t in given(kind))

    y, rstd = traced_on_the_chip(lambda x, w: rms_norm_tpu.forward(x, w, 1e-6), x, w)
    found: Any = (y, *traced_on_the_chip(rms_norm_tpu.backward, grad, x, rstd, w))

    tolerance = 1e-5 if dtype == "float32" else 8e-3  # half a unit of bfloat16 is 4e-3
    for ours, theirs in zip(found, exact(kind), strict=True):
        near = torch.tensor(jnp.asarray(ours, "float32").tolist()).double()
        torch.testing.assert_close(near, theirs, rtol=tolerance, atol=1e-4)


def test_what_the_kernel_does_not_take_is_said() -> None:
    assert rms_norm_tpu.objection(4096, 2048, "bfloat16", "float32") is None
    assert rms_norm_tpu.objection(48, 128, "float32", "float32") is None
    assert "2047" in str(rms_norm_tpu.objection(4096, 2047, "bfloat16", "bfloat16"))
    assert "4095 rows" in str(rms_norm_tpu.objection(4095, 2048, "bfloat16", "bfloat16"))
    assert "float64" in str(rms_norm_tpu.objection(4096, 2048, "float64", "float64"))
    assert "None" in str(rms_norm_tpu.objection(4096, 2048, "float32", None))


def test_it_is_one_node_of_a_compiled_function_and_widths_are_checked() -> None:
    x, w, _ = (t.to("pjrt") for t in given(torch.float32))

    y = torch.compile(lambda x, w: rms_norm(x, w) * 2, fullgraph=True)(x, w)

    torch.testing.assert_close(y.cpu(), 2 * exact(torch.float32)[0].float(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"saw \[48, 256\], \[48\]"):
        rms_norm(x, w[:48])


def test_compiled_ahead_for_a_tpu_the_kernel_reads_less() -> None:
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")
    like = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((512, 1024), (1024,))]

    def step(norm: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = norm(x, w)
        return y, *torch.autograd.grad(y, (x, w), torch.ones_like(y))

    ours = torch_pjrt.compile_for("v5e:2x2", lambda x, w: step(rms_norm, x, w), *like)

    assert ours.text().count("tpu_custom_call") >= 2
