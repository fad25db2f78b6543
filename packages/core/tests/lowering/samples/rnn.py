"""Samples for lowering/rnn.py.

PyTorch has these cells for CUDA alone. The samples give it CPU kernels, which spell the cells out in
PyTorch operators and leave the backward to autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


Tensors = tuple[torch.Tensor | None, ...]


def lstm(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, 1)
    workspace = torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], 1)
    return *lstm_states(workspace, cx), workspace


def lstm_states(workspace: torch.Tensor, cx: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, g, o = workspace.chunk(4, 1)
    cy = f * cx + i * g
    return o * cy.tanh(), cy


def with_autograd(kernel: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Runs the kernel in a thread of its own: the calling one is already below autograd."""

    def run(*args: Any) -> Tensors:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(kernel, *args).result()

    return run


@with_autograd
def lstm_backward(
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> Tensors:
    i, f, g, o = workspace.chunk(4, 1)
    gates = torch.cat([i.logit(), f.logit(), g.atanh(), o.logit()], 1).requires_grad_()
    cx = cx.detach().requires_grad_()
    hy, cy, _ = lstm(gates, torch.zeros_like(gates), cx)
    pairs = [(y, g) for y, g in ((hy, grad_hy), (cy, grad_cy)) if g is not None]
    ys, grads = zip(*pairs, strict=True)
    grad_gates, grad_cx = torch.autograd.grad(ys, (gates, cx), grads)
    return grad_gates, grad_cx, grad_gates.sum(0) if has_bias else None


def gru(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    in_r, in_z, in_n = input_gates.chunk(3, 1)
    hid_r, hid_z, hid_n = hidden_gates.chunk(3, 1)
    r, z = (in_r + hid_r).sigmoid(), (in_z + hid_z).sigmoid()
    n = (in_n + r * hid_n).tanh()
    return (1 - z) * n + z * hx, torch.cat([r, z, n, hx, hid_n], 1)


@with_autograd
def gru_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Tensors:
    r, z, n, hx, hid_n = workspace.chunk(5, 1)
    given = torch.cat([r.logit(), z.logit(), n.atanh() - r * hid_n], 1).requires_grad_()
    hidden = torch.cat([torch.zeros_like(hx), torch.zeros_like(hx), hid_n], 1).requires_grad_()
    hx = hx.detach().requires_grad_()
    hy, _ = gru(given, hidden, hx)
    grads = torch.autograd.grad(hy, (given, hidden, hx), grad_hy)
    sums = [g.sum(0) if has_bias else None for g in grads[:2]]
    return *grads, *sums


LIBRARY = torch.library.Library("aten", "IMPL")
for name, kernel in {
    "_thnn_fused_lstm_cell": lstm,
    "_thnn_fused_lstm_cell_backward_impl": lstm_backward,
    "_thnn_fused_gru_cell": gru,
    "_thnn_fused_gru_cell_backward": gru_backward,
}.items():
    LIBRARY.impl(name, kernel, "CPU")

LSTM = (normal(3, 20), normal(3, 20), normal(3, 5))
GRU = (normal(3, 15), normal(3, 15), normal(3, 5))
LSTM_BIAS = (normal(20), normal(20))
GRU_BIAS = (normal(15), normal(15))


def states(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """cx, cy and workspace."""
    _, cy, workspace = lstm(*LSTM)
    return LSTM[2].to(dtype), cy.to(dtype), workspace.to(dtype)


SAMPLES: list[Sample] = [
    sample(aten._thnn_fused_lstm_cell.default, *LSTM),
    sample(aten._thnn_fused_lstm_cell.default, *LSTM, *LSTM_BIAS),
    sample(aten._thnn_fused_lstm_cell.default, *(x.double() for x in (*LSTM, *LSTM_BIAS))),
    *[
        sample(
            aten._thnn_fused_lstm_cell_backward_impl.default, grad_hy, grad_cy, *states(), has_bias
        )
        for grad_hy in (None, normal(3, 5))
        for grad_cy in (None, normal(3, 5))
        for has_bias in (False, True)
        if grad_hy is not None or grad_cy is not None
    ],
    sample(aten._thnn_fused_gru_cell.default, *GRU),
    sample(aten._thnn_fused_gru_cell.default, *GRU, *GRU_BIAS),
    sample(aten._thnn_fused_gru_cell.default, *(x.double() for x in (*GRU, *GRU_BIAS))),
    *[
        sample(aten._thnn_fused_gru_cell_backward.default, normal(3, 5), gru(*GRU)[1], has_bias)
        for has_bias in (False, True)
    ],
]
