"""`rotary` is the formula of models, with gradients; on a TPU a kernel computes it, interpreted here."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_pjrt
from torch_pjrt_kernels import rotary
from torch_pjrt_kernels.own.on_chip import traced_on_the_chip
from torch_pjrt_kernels.rotary import rotary_tpu

BATCH, HEADS, POSITIONS, WIDTH = 2, 3, 48, 128


def given(by_batch: bool, width: int = WIDTH) -> list[torch.Tensor]:
    """Input, cos, sin (any numbers: the halves of tables may differ), and the result's gradient."""
    generator = torch.Generator().manual_seed(0)
    whole = (BATCH, HEADS, POSITIONS, width)
    table = (BATCH, POSITIONS, width) if by_batch else (POSITIONS, width)
    return [torch.randn(s, generator=generator) for s in (whole, table, table, whole)]


def exact(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula of `transformers` and its gradient, in float64."""
    x, cos, sin, grad = (t.double() for t in tensors)
    x.requires_grad_()
    first, second = x.chunk(2, -1)
    y = x * cos.unsqueeze(-3) + torch.cat((-second, first), -1) * sin.unsqueeze(-3)
    return y.detach(), torch.autograd.grad(y, x, grad)[0]


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_the_formula_with_its_gradient(
    dtype: torch.dtype, by_batch: bool, device: str
) -> None:
    """An element is two products and a sum, in a wider dtype for bfloat16, and is rounded to its own once."""
    rounded = [t.to(dtype) for t in given(by_batch, 6)]
    x, cos, sin, grad = (t.to(device) for t in rounded)

    y = rotary(x.requires_grad_(), cos, sin)
    (of_x,) = torch.autograd.grad(y, x, grad)

    unit = {torch.float32: 2**-22, torch.float64: 2**-50, torch.bfloat16: 2**-8}[dtype]
    for ours, theirs in zip((y.detach(), of_x), exact(*rounded), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=unit, atol=16 * 2**-24)


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_kernel_computes_the_same(dtype: str, by_batch: bool) -> None:
    torch.zeros(1, device="pjrt").item()  # starts the device
    rounded = [t.to(getattr(torch, dtype)) for t in given(by_batch)]
    x, cos, sin, grad = (jnp.asarray(t.float().numpy()).astype(dtype) for t in rounded)
    tables = [t.reshape(-1, POSITIONS, WIDTH) for t in (cos, sin)]

    found = [
        traced_on_the_chip(partial(rotary_tpu.turned, back=back), t, *tables)
        for t, back in ((x, False), (grad, True))
    ]

    unit = 2**-22 if dtype == "float32" else 2**-8
    for ours, theirs in zip(found, exact(*rounded), strict=True):
        near = torch.from_numpy(np.asarray(ours, np.float64))
        torch.testing.assert_close(near, theirs, rtol=unit, atol=16 * 2**-24)


@pytest.mark.parametrize(
    ("positions", "width", "dtypes", "words"),
    [
        (4096, 128, ("bfloat16", "float32"), None),
        (16, 256, ("float32",), None),
        (4096, 64, ("bfloat16",), "4096 positions of 64"),
        (4095, 128, ("bfloat16",), "4095 positions"),
        (4096, 128, ("float64",), "this is float64"),
    ],
)
def test_what_the_kernel_does_not_take_is_said(
    positions: int, width: int, dtypes: tuple[str, ...], words: str | None
) -> None:
    found = rotary_tpu.objection(positions, width, *dtypes)

    assert (found is None) if words is None else (words in (found or ""))


def test_it_is_one_node_of_a_compiled_function_and_shapes_are_checked() -> None:
    tensors = given(False)
    x, cos, sin, _ = (t.to("pjrt") for t in tensors)

    y = torch.compile(lambda x, c, s: rotary(x, c, s) * 2, fullgraph=True)(x, cos, sin)

    torch.testing.assert_close(y.cpu(), 2 * exact(*tensors)[0].float(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"rotary takes(?s:.*)\[2, 3, 48, 128\], \[47, 128\]"):
        rotary(x, cos[1:], sin[1:])
    with pytest.raises(ValueError, match=r"rotary takes"):
        rotary(x[0], cos, sin)


def test_compiled_ahead_for_a_tpu_the_kernel_moves_less_than_the_composition() -> None:
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")
    shapes = ((1, 16, 1024, 128), (1, 16, 1024, 128), (1024, 128), (1024, 128))
    like = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes]

    def composed(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def step(turn: object, x: torch.Tensor, grad: torch.Tensor, *tables: torch.Tensor) -> object:
        x = x.detach().requires_grad_()
        y = turn(x, *tables)  # type: ignore[operator]
        return y, *torch.autograd.grad(y, x, grad)

    ours, theirs = (
        torch_pjrt.compile_for("v5e:2x2", partial(step, turn), *like) for turn in (rotary, composed)
    )

    assert ours.text().count("tpu_custom_call") >= 2
    # XLA counts nothing for the kernel's calls: each reads its array and the tables, and writes its array.
    of_kernel = 2 * 2 * (2 * 16 * 1024 * 128 + 2 * 1024 * 128)
    assert (ours.accessed_bytes or 0) + of_kernel < 0.5 * (theirs.accessed_bytes or 0)
