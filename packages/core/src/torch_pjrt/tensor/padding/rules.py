"""What operators do with padding: the table of rules, for all who record calls on padded arrays.

An operator that works on each row for itself may do so on rows that are not there. Where rows meet (a
sum, a product of matrices), the padding must first be filled with what changes nothing: a rule says
with what. Two read the table: calls with tensors of data-dependent size (`calls.py`: one padded dim;
without a rule they are cut to their true size), and the buckets of `torch.compile` (several).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from torch_pjrt.overloads import aten, prims

Given = Mapping[str, Any]  # the arguments of a functional overload, by name
Dims = Mapping[str, Collection[int]]  # along which dims each padded argument is padded
Fill = float | Callable[[torch.dtype, Given], float]


def _everywhere(given: Given, name: str) -> Collection[int]:
    return range(given[name].ndim)


@dataclass(frozen=True, slots=True)
class Padding:
    """What makes an operator right on padded tensors.

    fills    what is put into the padding of an argument, along those of its dims where elements meet.
    meets    those dims of an argument; of more than is so is right, too.
    always   as `fills`, along all dims: indices must be inside what they index.
    sizes    arguments that are sizes: those of the arrays are meant.
    suits    whether the operator can be treated so at all; the dims of its padded arguments decide.
    ordered  the true elements must come first along the dims where elements meet: it counts along them.

    A dim of a result is padded as that dim of the arguments is from which it comes.
    """

    fills: Mapping[str, Fill] = field(default_factory=dict)
    meets: Callable[[Given, str], Collection[int]] = _everywhere
    always: Mapping[str, Fill] = field(default_factory=dict)
    sizes: tuple[str, ...] = ()
    suits: Callable[[Given, Dims], bool] = lambda given, dims: True
    ordered: bool = False

    def filled(self, given: Given, dims: Dims) -> dict[str, tuple[float, list[int]]]:
        """Of each argument that must be filled, with what, and along which of its padded dims."""
        found: dict[str, tuple[Fill, list[int]]] = {
            name: (fill, [*dims[name]]) for name, fill in self.always.items() if name in dims
        }
        for name, fill in self.fills.items():
            if name in dims and (along := [d for d in self.meets(given, name) if d in dims[name]]):
                found[name] = fill, along
        return {
            name: (fill(given[name].dtype, given) if callable(fill) else fill, along)
            for name, (fill, along) in found.items()
        }


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


def folded(given: Given, name: str) -> Collection[int]:
    """The dims that `dim` names: all where it names none."""
    n, dim = given[name].ndim, given.get("dim")
    asked = [dim] if isinstance(dim, int) else dim
    return sorted(d % max(n, 1) for d in asked) if asked else range(n)


def _summed(left: str) -> Callable[[Given, str], Collection[int]]:
    """The dim of a factor of a product along which is summed: the last of the left one."""
    return lambda given, name: (
        given[name].ndim - 1 if name == left else max(given[name].ndim - 2, 0),
    )


def _not_along_dim(given: Given, dims: Dims) -> bool:
    return not any({*along} & {*folded(given, name)} for name, along in dims.items())


def _of_rows(given: Given, dims: Dims) -> bool:
    return all({*along} <= {0} for along in dims.values())


def _only(*names: str) -> Callable[[Given, Dims], bool]:
    return lambda given, dims: {*dims} <= {*names}


def _of_batch(given: Given, dims: Dims) -> bool:
    return {*dims} <= {"input", "grad_output"} and _of_rows(given, dims)


def _of_one_dim(given: Given, dims: Dims) -> bool:
    """An index into the flattened tensor says which row only if rows are slowest."""
    return given.get("dim") is not None or _of_rows(given, dims)


def _of_floats(given: Given, dims: Dims) -> bool:
    """What stands for nothing among floats, -inf, is no integer."""
    return given["self"].dtype.is_floating_point


def _positive_order(given: Given, dims: Dims) -> bool:
    order = given.get("ord", given.get("p", 2))
    return order is None or order > 0


def _topk_of_enough(given: Given, dims: Dims) -> bool:
    x = given["self"]
    return given["k"] <= x.shape[given["dim"] % x.ndim] if x.ndim else False


def _not_flipped(given: Given, dims: Dims) -> bool:
    return not {d % given["self"].ndim for d in given["dims"]} & {*dims["self"]}


def _not_of_channels(given: Given, dims: Dims) -> bool:
    return {*dims} <= {"input"} and 1 not in dims["input"]


def _of_classes(given: Given, name: str) -> Collection[int]:
    return (min(1, given[name].ndim - 1),) if name == "self" else ()


def _matrix(given: Given, name: str) -> Collection[int]:
    return range(given[name].ndim - 2, given[name].ndim)


ROWS = Padding()
_IMAGES = Padding(suits=_of_rows)
_GROUP_NORM = Padding(
    dict.fromkeys(("grad_out", "input", "mean", "rstd"), 0), sizes=("N", "C", "HxW"), suits=_of_rows
)
_TRIANGLE = Padding(meets=_matrix, ordered=True)
_SUM = Padding({"self": 0}, folded)
_ALL = Padding({"self": 1}, folded)
_SCAN = Padding(
    ordered=True, meets=folded
)  # what comes after the true elements changes nothing before
_SOFTMAX = Padding({"self": lowest}, folded)
_SOFTMAX_BACKWARD = Padding({"grad_output": 0, "output": 0}, folded)
_SORT = Padding({"self": _last}, folded, ordered=True)
_CLASSES = Padding(
    always={"target": _argument("ignore_index")},
    meets=_of_classes,
    ordered=True,
    suits=lambda given, dims: given["target"].dtype is torch.int64,  # bytes cannot say -100
)
_NORM = Padding({"self": 0}, folded, suits=_positive_order)
_LOWEST, _HIGHEST = Padding({"self": lowest}, folded), Padding({"self": highest}, folded)
_ARGMAX = Padding({"self": lowest}, folded, suits=_of_one_dim, ordered=True)
_ARGMIN = Padding({"self": highest}, folded, suits=_of_one_dim, ordered=True)


def _product(left: str, right: str) -> Padding:
    return Padding({left: 0, right: 0}, _summed(left))


TABLE: dict[Any, Padding] = {
    # Element by element, though PyTorch does not tag them so.
    **dict.fromkeys(
        (
            aten._to_copy.default,
            aten._prelu_kernel_backward.default,
            aten._prelu_kernel.default,
            aten._conj_copy.default,
            aten.alias.default,
            aten.alias_copy.default,
            aten.clone.default,
            aten.detach.default,
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
    # Each row for itself, where the padded dim is not the one that is worked along.
    aten.convolution.default: Padding(suits=_of_batch),
    aten.convolution_backward.default: Padding({"grad_output": 0, "input": 0}, suits=_of_batch),
    aten.flip.default: Padding(suits=_not_flipped),
    aten.glu.default: Padding(suits=_not_along_dim),
    aten.glu_backward.default: Padding(suits=_not_along_dim),
    aten.native_layer_norm.default: Padding(),
    aten.native_layer_norm_backward.default: Padding(
        {"grad_out": 0, "input": 0, "mean": 0, "rstd": 0}
    ),
    aten._fused_rms_norm.default: Padding(),
    aten._fused_rms_norm_backward.default: Padding({"grad_out": 0, "input": 0, "rstd": 0}),
    aten.native_group_norm.default: _GROUP_NORM,
    aten.native_group_norm_backward.default: _GROUP_NORM,
    aten.stack.default: Padding(),
    aten.tril.default: _TRIANGLE,
    aten.triu.default: _TRIANGLE,
    aten._native_batch_norm_legit_no_training.default: Padding(suits=_not_of_channels),
    aten.avg_pool2d.default: _IMAGES,
    aten.avg_pool2d_backward.default: _IMAGES,
    aten._adaptive_avg_pool2d.default: _IMAGES,
    aten._adaptive_avg_pool2d_backward.default: _IMAGES,
    aten.max_pool2d_with_indices.default: _IMAGES,
    aten.max_pool2d_with_indices_backward.default: Padding(always={"indices": 0}, suits=_of_rows),
    aten._softmax.default: _SOFTMAX,
    aten._safe_softmax.default: _SOFTMAX,
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
    aten.topk.default: Padding({"self": _last}, folded, suits=_topk_of_enough, ordered=True),
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
    aten.prod.default: _ALL,
    aten.prod.dim_int: _ALL,
    aten.all.default: _ALL,
    aten.all.dim: _ALL,
    aten.all.dims: _ALL,
    aten.amax.default: _LOWEST,
    aten.max.default: _LOWEST,
    aten.max.dim: _ARGMAX,
    aten.argmax.default: _ARGMAX,
    aten.amin.default: _HIGHEST,
    aten.min.default: _HIGHEST,
    aten.min.dim: _ARGMIN,
    aten.argmin.default: _ARGMIN,
    aten.logsumexp.default: Padding({"self": lowest}, folded, suits=_of_floats),
    # Products: rows meet where the padded dim is summed over.
    aten.mm.default: _product("self", "mat2"),
    aten.bmm.default: _product("self", "mat2"),
    aten.mv.default: _product("self", "vec"),
    aten.dot.default: _product("self", "tensor"),
    aten.addmm.default: _product("mat1", "mat2"),
    aten.addmv.default: _product("mat", "vec"),
    aten.baddbmm.default: _product("batch1", "batch2"),
    # Look-ups and losses by class. An index out of range, or an ignored one, adds nothing.
    aten.embedding.default: Padding(always={"indices": 0}, suits=_only("indices")),
    aten.embedding_dense_backward.default: Padding(always={"indices": _argument("num_weights")}),
    aten.nll_loss_forward.default: _CLASSES,
    aten.nll_loss_backward.default: _CLASSES,
    aten.nll_loss2d_forward.default: _CLASSES,
    aten.nll_loss2d_backward.default: _CLASSES,
    # Only as many elements of the source are taken as the mask has true ones.
    aten.masked_scatter.default: Padding(
        suits=lambda given, dims: {*dims} == {"source"} and _of_rows(given, dims)
    ),
    # What finds how many there are.
    aten.nonzero_static.default: Padding(always={"self": 0}, suits=_of_rows),
    aten.repeat_interleave.Tensor: Padding(always={"repeats": 0}),
}

_POINTWISE_BUT_NOT_TAGGED = frozenset(op for op, row in TABLE.items() if row is ROWS)


@cache
def is_pointwise(op: Any) -> bool:
    """Whether each element of the result depends on one element of each, broadcast, argument.

    >>> is_pointwise(aten.sin.default), is_pointwise(aten.sum.default)
    (True, False)
    """
    return op in _POINTWISE_BUT_NOT_TAGGED or torch.Tag.pointwise in op.tags


def padding_of(op: Any) -> Padding | None:
    """The row of a functional overload."""
    return TABLE.get(op) or (ROWS if torch.Tag.pointwise in op.tags else None)
