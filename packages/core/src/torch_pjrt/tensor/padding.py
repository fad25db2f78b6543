"""How operators treat what lies past the true elements of a counted tensor: the table.

An operator that works on each row for itself may do so on rows that are not there. Where rows meet (a sum,
a product of matrices), the room must first be filled with what changes nothing: a row of the table says
with what. An operator without a row gets its tensors cut to their true size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_pjrt.overloads import aten, prims

Given = Mapping[str, Any]
Dims = Mapping[str, int]  # along which dim each counted argument has room
Fill = float | Callable[[torch.dtype, Given], float]


@dataclass(frozen=True, slots=True)
class Padding:
    """What makes an operator right on tensors with room.

    fills   what the room of an argument is filled with, where a result does not have that room any more.
    always  the same, in any case: places must be inside what they index.
    suits   whether the operator can be treated so at all; the dims of its counted arguments decide.
    mixes   whether rows meet though the results keep them: then the room is filled as well.
    """

    fills: Mapping[str, Fill] = field(default_factory=dict)
    always: Mapping[str, Fill] = field(default_factory=dict)
    suits: Callable[[Given, Dims], bool] = lambda given, dims: True
    mixes: Callable[[Given, Dims], bool] = lambda given, dims: False


def lowest(dtype: torch.dtype, given: Given) -> float:
    if dtype.is_floating_point:
        return -math.inf
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def highest(dtype: torch.dtype, given: Given) -> float:
    if dtype.is_floating_point:
        return math.inf
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _last(dtype: torch.dtype, given: Given) -> float:
    """What a stable sort puts after all true elements."""
    descending = given.get("descending") or (given.get("largest", False) is True)
    if descending:
        return lowest(dtype, given)
    return math.nan if dtype.is_floating_point else highest(dtype, given)


def _argument(name: str) -> Callable[[torch.dtype, Given], float]:
    return lambda dtype, given: given[name]


def _dim(given: Given) -> int:
    x = given.get("self", given.get("grad_output"))
    assert isinstance(x, torch.Tensor)
    return given["dim"] % max(x.ndim, 1)


def _along_dim(given: Given, dims: Dims) -> bool:
    return _dim(given) in dims.values()


def _not_along_dim(given: Given, dims: Dims) -> bool:
    return not _along_dim(given, dims)


def _of_rows(given: Given, dims: Dims) -> bool:
    return all(dim == 0 for dim in dims.values())


def _only(*names: str) -> Callable[[Given, Dims], bool]:
    return lambda given, dims: set(dims) <= set(names)


def _of_batch(given: Given, dims: Dims) -> bool:
    return set(dims) <= {"input", "grad_output"} and _of_rows(given, dims)


def _of_one_dim(given: Given, dims: Dims) -> bool:
    """A place in the flattened tensor says which row only if rows are slowest."""
    return given.get("dim") is not None or _of_rows(given, dims)


def _positive_order(given: Given, dims: Dims) -> bool:
    order = given.get("ord", given.get("p", 2))
    return order is None or order > 0


def _topk_of_enough(given: Given, dims: Dims) -> bool:
    return given["k"] <= given["self"].shape[_dim(given)] if given["self"].ndim else False


def _not_padded(given: Given, dims: Dims) -> bool:
    pad = given["pad"]
    from_end = given["self"].ndim - 1 - dims["self"]
    return not any(pad[2 * from_end : 2 * from_end + 2])


ROWS = Padding()
_SUM = Padding({"self": 0})
_SCAN = ROWS  # what comes after the true elements changes nothing before
_SOFTMAX = Padding({"self": lowest}, mixes=_along_dim)
_SOFTMAX_BACKWARD = Padding({"grad_output": 0, "output": 0}, mixes=_along_dim)
_SORT = Padding({"self": _last}, mixes=_along_dim)
_CLASSES = Padding(always={"target": _argument("ignore_index")})
_NORM = Padding({"self": 0}, suits=_positive_order)
_LOWEST, _HIGHEST = Padding({"self": lowest}), Padding({"self": highest})


TABLE: dict[Any, Padding] = {
    # Element by element, though PyTorch does not tag them so.
    **dict.fromkeys(
        (
            aten._to_copy.default,
            aten._prelu_kernel_backward.default,
            aten._prelu_kernel.default,
            aten._conj_copy.default,
            aten.alias_copy.default,
            aten.bernoulli.default,
            aten.bernoulli.p,
            aten.complex.default,
            aten.copy.default,
            aten.detach_copy.default,
            aten.elu_backward.default,
            aten.empty_like.default,
            aten.fill.Scalar,
            aten.floor_divide.default,
            aten.floor_divide.Scalar,
            aten.full_like.default,
            aten.hardshrink_backward.default,
            aten.hardsigmoid_backward.default,
            aten.hardswish.default,
            aten.hardswish_backward.default,
            aten.hardtanh_backward.default,
            aten.isin.Tensor_Scalar,
            aten.leaky_relu_backward.default,
            aten.lift_fresh_copy.default,
            aten.log_sigmoid_backward.default,
            aten.log_sigmoid_forward.default,
            aten.masked_fill.Tensor,
            aten.mish_backward.default,
            aten.native_dropout.default,
            aten.normal_functional.default,
            aten.ones_like.default,
            aten.polar.default,
            aten.rsub.Tensor,
            aten.softplus_backward.default,
            aten.softshrink_backward.default,
            aten.uniform.default,
            aten.zero.default,
            aten.zeros_like.default,
            prims.convert_element_type.default,
        ),
        ROWS,
    ),
    # Each row for itself, where the counted dim is not the one that is worked along.
    aten.constant_pad_nd.default: Padding(suits=_not_padded),
    aten.convolution.default: Padding(suits=_of_batch),
    aten.convolution_backward.default: Padding({"grad_output": 0, "input": 0}, suits=_of_batch),
    aten.flip.default: Padding(
        suits=lambda given, dims: (
            not {d % given["self"].ndim for d in given["dims"]} & {*dims.values()}
        )
    ),
    aten.glu.default: Padding(suits=_not_along_dim),
    aten.native_layer_norm.default: ROWS,
    aten.native_layer_norm_backward.default: Padding(
        {"grad_out": 0, "input": 0, "mean": 0, "rstd": 0}
    ),
    aten._fused_rms_norm.default: ROWS,
    aten._fused_rms_norm_backward.default: Padding({"grad_out": 0, "input": 0, "rstd": 0}),
    aten.stack.default: Padding(),
    aten._softmax.default: _SOFTMAX,
    aten._log_softmax.default: _SOFTMAX,
    aten._softmax_backward_data.default: _SOFTMAX_BACKWARD,
    aten._log_softmax_backward_data.default: _SOFTMAX_BACKWARD,
    aten.cumsum.default: _SCAN,
    aten.cumprod.default: _SCAN,
    aten.cummax.default: _SCAN,
    aten.cummin.default: _SCAN,
    aten._logcumsumexp.default: _SCAN,
    aten.sort.default: _SORT,
    aten.sort.stable: _SORT,
    aten.topk.default: Padding({"self": _last}, mixes=_along_dim, suits=_topk_of_enough),
    # Folds.
    aten.sum.default: _SUM,
    aten.sum.dim_IntList: _SUM,
    aten.nansum.default: _SUM,
    aten.count_nonzero.default: _SUM,
    aten.count_nonzero.dim_IntList: _SUM,
    aten.any.default: _SUM,
    aten.any.dim: _SUM,
    aten.any.dims: _SUM,
    aten.linalg_vector_norm.default: _NORM,
    aten.norm.Scalar: _NORM,
    aten.norm.ScalarOpt_dim: _NORM,
    aten.prod.default: Padding({"self": 1}),
    aten.prod.dim_int: Padding({"self": 1}),
    aten.all.default: Padding({"self": 1}),
    aten.all.dim: Padding({"self": 1}),
    aten.all.dims: Padding({"self": 1}),
    aten.amax.default: _LOWEST,
    aten.max.default: _LOWEST,
    aten.max.dim: _LOWEST,
    aten.argmax.default: Padding({"self": lowest}, suits=_of_one_dim),
    aten.amin.default: _HIGHEST,
    aten.min.default: _HIGHEST,
    aten.min.dim: _HIGHEST,
    aten.argmin.default: Padding({"self": highest}, suits=_of_one_dim),
    aten.logsumexp.default: _LOWEST,
    # Products: rows meet where the counted dim is summed over.
    aten.mm.default: Padding({"self": 0, "mat2": 0}),
    aten.bmm.default: Padding({"self": 0, "mat2": 0}),
    aten.mv.default: Padding({"self": 0, "vec": 0}),
    aten.dot.default: Padding({"self": 0, "tensor": 0}),
    aten.addmm.default: Padding({"mat1": 0, "mat2": 0}),
    aten.addmv.default: Padding({"mat": 0, "vec": 0}),
    aten.baddbmm.default: Padding({"batch1": 0, "batch2": 0}),
    # Look-ups and losses by class. An index out of range, or an ignored one, adds nothing.
    aten.embedding.default: Padding(always={"indices": 0}, suits=_only("indices")),
    aten.embedding_dense_backward.default: Padding(always={"indices": _argument("num_weights")}),
    aten.nll_loss_forward.default: _CLASSES,
    aten.nll_loss_backward.default: _CLASSES,
    aten.nll_loss2d_forward.default: _CLASSES,
    aten.nll_loss2d_backward.default: _CLASSES,
    # What finds how many there are.
    aten.nonzero_static.default: Padding(always={"self": 0}, suits=_of_rows),
    aten.repeat_interleave.Tensor: Padding(always={"repeats": 0}),
}

_POINTWISE_BUT_NOT_TAGGED = frozenset(op for op, row in TABLE.items() if row is ROWS) - {
    aten.native_layer_norm.default,
    aten._fused_rms_norm.default,
    aten.cumsum.default,
    aten.cumprod.default,
    aten.cummax.default,
    aten.cummin.default,
    aten._logcumsumexp.default,
}


def is_pointwise(op: Any) -> bool:
    """Whether each element of the result depends on one element of each, broadcast, argument."""
    return op in _POINTWISE_BUT_NOT_TAGGED or torch.Tag.pointwise in op.tags


def padding_of(op: Any) -> Padding | None:
    """The row of a functional overload."""
    return TABLE.get(op) or (ROWS if torch.Tag.pointwise in op.tags else None)
