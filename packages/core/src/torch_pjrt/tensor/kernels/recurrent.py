"""GRUs and LSTMs of which tangents are carried along.

For accelerators PyTorch's C++ takes a cell that is one operator, which has no rule for tangents. Its Python
decompositions are made of operators that have one, as what C++ takes on the CPU is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.kernels.attention import is_differentiated_forward

Optional = torch.Tensor | None


def _is_decomposed() -> bool:
    """Whether tangents may be carried along, or Python dispatches: it takes the decomposition anyway."""
    return is_differentiated_forward() or torch._C._dispatch_tls_is_dispatch_key_included(
        torch._C.DispatchKey.PythonDispatcher
    )


def _decomposed(op: Any) -> Callable[..., Any]:
    from torch._decomp import decomposition_table

    return decomposition_table[op]


def _layers(op: Any) -> Callable[..., Any]:
    def layers(*args: Any) -> Any:
        return _decomposed(op)(*args) if _is_decomposed() else op.decompose(*args)

    return layers


def _one_step(op: Any, input: torch.Tensor, state: Any, *parameters: Optional) -> Any:
    """What a layer of these parameters gives for one time step: a cell is that."""
    given = [x for x in parameters if x is not None]
    how = len(given) > 2, 1, 0.0, False, False, False
    return _decomposed(op)(input[None], state, given, *how)


def gru_cell(
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Optional = None,
    b_hh: Optional = None,
) -> torch.Tensor:
    if not is_differentiated_forward():
        return aten.gru_cell.default.decompose(input, hx, w_ih, w_hh, b_ih, b_hh)
    return _one_step(aten.gru.input, input, hx[None], w_ih, w_hh, b_ih, b_hh)[1][0]


def lstm_cell(
    input: torch.Tensor,
    hx: list[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: Optional = None,
    b_hh: Optional = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not is_differentiated_forward():
        return aten.lstm_cell.default.decompose(input, hx, w_ih, w_hh, b_ih, b_hh)
    state = [x[None] for x in hx]
    _, hy, cy = _one_step(aten.lstm.input, input, state, w_ih, w_hh, b_ih, b_hh)
    return hy[0], cy[0]


# Before autograd: what they call is differentiated.
ABOVE_AUTOGRAD: dict[Any, Any] = {
    aten.gru_cell.default: gru_cell,
    aten.lstm_cell.default: lstm_cell,
    **{op: _layers(op) for op in (aten.gru.data, aten.gru.input, aten.lstm.data, aten.lstm.input)},
}
