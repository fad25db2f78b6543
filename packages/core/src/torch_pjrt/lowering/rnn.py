"""Lowerings of the LSTM and GRU cells that PyTorch calls on accelerators.

Their matrix products are separate operators; a cell gets the products of input and hidden state, its
gates, side by side in the last dim. `workspace` carries the activated gates to the backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.promote import opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float

Array = jax.Array

table = LoweringTable("rnn")


def _wide(x: Array) -> Array:
    return lax.convert_element_type(x, opmath(x.dtype))


def _biased(gates: Array, bias: Array | None) -> Array:
    return _wide(gates) if bias is None else _wide(gates) + _wide(bias)


def _joined(parts: list[Array], dtype: np.dtype) -> Array:
    return lax.convert_element_type(lax.concatenate(parts, parts[0].ndim - 1), dtype)


def _sum_over_batch(x: Array) -> Array:
    return lax.convert_element_type(jnp.sum(_wide(x), 0), x.dtype)


@table.lowers(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    input_gates: Float[Array, "batch gates"],
    hidden_gates: Float[Array, "batch gates"],
    cx: Float[Array, "batch hidden"],
    input_bias: Float[Array, " gates"] | None = None,
    hidden_bias: Float[Array, " gates"] | None = None,
) -> tuple[
    Float[Array, "batch hidden"], Float[Array, "batch hidden"], Float[Array, "batch 4*hidden"]
]:
    """Gates: input, forget, cell, output. Gives the hidden state, the cell state and the workspace."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = jnp.split(gates, 4, -1)
    i, f, g, o = lax.logistic(i), lax.logistic(f), lax.tanh(g), lax.logistic(o)
    cy = f * _wide(cx) + i * g
    hy = o * lax.tanh(cy)
    return (
        lax.convert_element_type(hy, cx.dtype),
        lax.convert_element_type(cy, cx.dtype),
        _joined([i, f, g, o], input_gates.dtype),
    )


@table.lowers(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    grad_hy: Float[Array, "batch hidden"] | None,
    grad_cy: Float[Array, "batch hidden"] | None,
    cx: Float[Array, "batch hidden"],
    cy: Float[Array, "batch hidden"],
    workspace: Float[Array, "batch 4*hidden"],
    has_bias: bool,
) -> tuple[
    Float[Array, "batch 4*hidden"], Float[Array, "batch hidden"], Float[Array, " 4*hidden"] | None
]:
    """The gradients of the gates, of `cx`, and of the sum of both biases, if there are any."""
    i, f, g, o = jnp.split(_wide(workspace), 4, -1)
    squashed = lax.tanh(_wide(cy))
    zero = lax.full_like(squashed, 0)
    grad_h = zero if grad_hy is None else _wide(grad_hy)
    grad_c = zero if grad_cy is None else _wide(grad_cy)
    grad_c = grad_c + grad_h * o * (1 - squashed * squashed)
    grads = [
        grad_c * g * i * (1 - i),
        grad_c * _wide(cx) * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_h * squashed * o * (1 - o),
    ]
    grad_gates = _joined(grads, workspace.dtype)
    grad_cx = lax.convert_element_type(grad_c * f, cx.dtype)
    return grad_gates, grad_cx, _sum_over_batch(grad_gates) if has_bias else None


@table.lowers(aten._thnn_fused_gru_cell.default)
def gru_cell(
    input_gates: Float[Array, "batch gates"],
    hidden_gates: Float[Array, "batch gates"],
    hx: Float[Array, "batch hidden"],
    input_bias: Float[Array, " gates"] | None = None,
    hidden_bias: Float[Array, " gates"] | None = None,
) -> tuple[Float[Array, "batch hidden"], Float[Array, "batch 5*hidden"]]:
    """Gates: reset, update, new. The workspace holds them, `hx`, and the hidden part of the new gate."""
    in_r, in_z, in_n = jnp.split(_biased(input_gates, input_bias), 3, -1)
    hid_r, hid_z, hid_n = jnp.split(_biased(hidden_gates, hidden_bias), 3, -1)
    r, z = lax.logistic(in_r + hid_r), lax.logistic(in_z + hid_z)
    n = lax.tanh(in_n + r * hid_n)
    hidden = _wide(hx)
    hy = n + z * (hidden - n)
    return lax.convert_element_type(hy, hx.dtype), _joined([r, z, n, hidden, hid_n], hx.dtype)


@table.lowers(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(
    grad_hy: Float[Array, "batch hidden"], workspace: Float[Array, "batch 5*hidden"], has_bias: bool
) -> tuple[
    Float[Array, "batch 3*hidden"],
    Float[Array, "batch 3*hidden"],
    Float[Array, "batch hidden"],
    Float[Array, " 3*hidden"] | None,
    Float[Array, " 3*hidden"] | None,
]:
    """The gradients of both gates, of `hx`, and of both biases, if there are any."""
    r, z, n, hidden, hid_n = jnp.split(_wide(workspace), 5, -1)
    grad = _wide(grad_hy)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r = grad_n * hid_n * r * (1 - r)
    grad_z = grad * (hidden - n) * z * (1 - z)
    dtype = workspace.dtype
    grad_input = _joined([grad_r, grad_z, grad_n], dtype)
    grad_hidden = _joined([grad_r, grad_z, grad_n * r], dtype)
    grad_hx = lax.convert_element_type(grad * z, dtype)
    if not has_bias:
        return grad_input, grad_hidden, grad_hx, None, None
    biases = _sum_over_batch(grad_input), _sum_over_batch(grad_hidden)
    return grad_input, grad_hidden, grad_hx, *biases
