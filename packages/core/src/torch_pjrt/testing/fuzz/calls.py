"""What a program may call: rows of a name, a function and how its arguments are drawn.

    PURE      gives new tensors, or views.
    WRITES    changes its first argument (the row's `function` returns it).

A row whose function's results hold no defined values, or draw by chance, is not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from torch_pjrt.testing.fuzz import arguments as a
from torch_pjrt.testing.fuzz.arguments import Argument


class Call(NamedTuple):
    """`kwargs` are given by name, half of the time."""

    name: str
    function: Callable[..., Any]
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]


def _row(name: str, *args: Argument, **kwargs: Argument) -> Call:
    base, _, attribute = name.rpartition(".")
    where: Any = {
        "": torch,
        "F": F,
        "linalg": torch.linalg,
        "fft": torch.fft,
        "special": torch.special,
    }
    if base == "Tensor":
        return Call(name, getattr(torch.Tensor, attribute), args, kwargs)
    return Call(name, getattr(where[base], attribute), args, kwargs)


def _own(name: str, function: Callable[..., Any], *args: Argument, **kwargs: Argument) -> Call:
    return Call(name, function, args, kwargs)


def get_item(x: Any, index: Any) -> Any:
    return x[index]


def get_by_list(x: Any, dim: int, index: list[int]) -> Any:
    return x.index_select(dim, torch.tensor(index, device=x.device))


def get_by_two_lists(x: Any, dim: int, first: list[int], second: list[int]) -> Any:
    n = min(len(first), len(second))
    x = x.movedim(dim, 0)
    if x.dim() < 2 or not x.shape[1]:
        return x[torch.tensor(first, device=x.device)]
    second = [i % x.shape[1] for i in second]
    return x[torch.tensor(first[:n], device=x.device), torch.tensor(second[:n], device=x.device)]


def gathered(x: Any, dim: int, index: list[int]) -> Any:
    shape = [1] * x.dim()
    if shape:
        shape[dim] = len(index)
    positions = torch.tensor(index, device=x.device).reshape(shape or [len(index)])
    return torch.gather(x, dim, positions)


def set_item(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def set_by_list(x: Any, dim: int, index: list[int], value: Any) -> Any:
    return x.index_fill_(dim, torch.tensor(index, device=x.device), value)


def set_where(x: Any, bound: Any) -> Any:
    x[x > bound] = bound
    return x


def select_where(x: Any, bound: Any) -> Any:
    return x[x > bound]


def accumulate_at(x: Any, dim: int, index: list[int]) -> Any:
    positions = torch.tensor(index, device=x.device)
    return x.index_add_(dim, positions, x.index_select(dim, positions))


def scatter_added(x: Any, dim: int, index: list[int]) -> Any:
    shape = [1] * x.dim()
    if shape:
        shape[dim] = len(index)
    positions = torch.tensor(index, device=x.device).reshape(shape or [len(index)])
    return x.scatter_add(dim, positions, torch.ones_like(positions, dtype=x.dtype))


def embedded(weight: Any, index: list[int]) -> Any:
    positions = torch.tensor(index, device=weight.device) % max(weight.shape[0], 1)
    return F.embedding(positions, weight)


def searched(sequence: Any, x: Any) -> Any:
    return torch.searchsorted(sequence.sort()[0], x)


def cross_entropy(x: Any, index: list[int]) -> Any:
    positions = torch.tensor(index, device=x.device) % max(x.shape[-1], 1)
    rows = x.reshape(-1, x.shape[-1])
    n = min(rows.shape[0], positions.shape[0])
    return F.cross_entropy(rows[:n], positions[:n])


def attention(x: Any, causal: bool) -> Any:
    return F.scaled_dot_product_attention(x, x * 0.5, x + 1, is_causal=causal)


def with_values_of(x: Any, y: Any) -> Any:
    return x.copy_(y)


def std_and_mean(x: Any, dim: Any, **kwargs: Any) -> Any:
    """Of what is finite: the CPU's running mean is nan after an infinity, but for a last one."""
    return torch.std_mean(x.where(x.isfinite(), 1), dim, **kwargs)


def largest(x: Any, k: int, **kwargs: Any) -> Any:
    """Without the indices: of equal elements it may be any."""
    return torch.topk(x, k, **kwargs)[0]


def in_order(x: Any, dim: int, **kwargs: Any) -> Any:
    """The values, and what lies at the indices: those of equal elements are in any order."""
    values, indices = torch.sort(x, dim, **kwargs)
    return values, x.take_along_dim(indices, dim) if x.dim() else x.clone()


def cast(x: Any, dtype: torch.dtype) -> Any:
    return _castable(x, dtype).to(dtype)


def summed(x: Any, dim: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    return torch.sum(_castable(x, dtype), dim, dtype=dtype, **kwargs)


def running_sum(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return torch.cumsum(_castable(x, dtype), dim, dtype=dtype)


def _castable(x: Any, dtype: torch.dtype | None) -> Any:
    """C leaves undefined which integer a float is that is none, or too large."""
    if x.is_floating_point() and dtype in (torch.int32, torch.int64):
        return x.where(x.abs() < 2**30, 0)
    return x


def batch_norm(x: Any) -> Any:
    return F.batch_norm(x, None, None, training=True)


_UNARY = """
    abs neg sign floor ceil round trunc frac exp expm1 log1p sqrt rsqrt sin cos tan atan asinh tanh sigmoid
    erf square reciprocal isnan isfinite isinf logical_not positive deg2rad sinc sgn nan_to_num clone
    special.entr special.ndtr special.log_ndtr special.i0e special.erfcx special.xlog1py
    F.relu F.gelu F.silu F.mish F.softplus F.elu F.selu F.hardswish F.hardsigmoid F.logsigmoid F.leaky_relu
    F.softsign F.tanhshrink F.relu6 F.hardtanh F.celu
""".split()  # noqa: SIM905  a table
_BINARY = """
    add sub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin atan2 hypot copysign
    eq ne lt le gt ge logical_and logical_or logical_xor xlogy logaddexp special.xlog1py nextafter heaviside
""".split()  # noqa: SIM905
_FOLDS = "sum mean amax amin prod all any logsumexp nansum count_nonzero".split()  # noqa: SIM905
_SCANS = "cumsum cumprod logcumsumexp softmax log_softmax".split()  # noqa: SIM905

PURE: tuple[Call, ...] = (
    *[_row(n, a.any_tensor) for n in _UNARY if n != "special.xlog1py"],
    *[_row(n, a.any_tensor, a.broadcastable) for n in _BINARY],
    *[_row(n, a.any_tensor, a.dims) for n in _FOLDS if n not in ("prod",)],
    _row("prod", a.any_tensor, a.dim, keepdim=a.flag),
    _own("sum", summed, a.any_tensor, a.dims, keepdim=a.flag, dtype=a.dtype),
    _row("mean", a.floats, a.dims, keepdim=a.flag),
    _row("var", a.floats, a.dims, correction=a.one_of(0, 1, 2), keepdim=a.flag),
    _own("std_and_mean", std_and_mean, a.floats, a.dims, keepdim=a.flag),
    _row("linalg.vector_norm", a.floats, a.one_of(1, 2, float("inf"), 0.5), a.dims, keepdim=a.flag),
    *[_row(n, a.floats, a.dim) for n in _SCANS],
    _own("cumsum", running_sum, a.any_tensor, a.dim, dtype=a.dtype),
    _row("cummax", a.any_tensor, a.dim),
    _row("max", a.any_tensor, a.dim, keepdim=a.flag),
    _row("min", a.any_tensor),
    _row("argmax", a.floats, a.dim, keepdim=a.flag),
    _row("median", a.floats, a.dim),
    _own("sort", in_order, a.floats, a.dim, descending=a.flag),
    _own("topk", largest, a.floats, a.amount, largest=a.flag),
    _row("diff", a.any_tensor, a.one_of(1, 2), a.dim),
    _row("where", a.bools, a.any_tensor, a.broadcastable),
    _row("clamp", a.any_tensor, a.number, a.number),
    _row("lerp", a.floats, a.alike, a.positive),
    _row("addcmul", a.floats, a.alike, a.alike, value=a.positive),
    _row("addcdiv", a.floats, a.alike, a.alike, value=a.positive),
    _row("add", a.any_tensor, a.broadcastable, alpha=a.one_of(2, -1)),
    _row("div", a.any_tensor, a.broadcastable, rounding_mode=a.one_of("floor", "trunc", None)),
    # views and shapes
    _row("reshape", a.any_tensor, a.shape_of_same_size),
    _row("Tensor.view", a.any_tensor, a.shape_of_same_size),
    _row("flatten", a.any_tensor, a.dim),
    _row("transpose", a.any_tensor, a.dim, a.dim),
    _row("permute", a.any_tensor, a.permutation),
    _row("Tensor.expand", a.any_tensor, a.larger_shape),
    _row("squeeze", a.any_tensor, a.dim),
    _row("unsqueeze", a.any_tensor, a.dim),
    _row("movedim", a.any_tensor, a.dim, a.dim),
    _row("select", a.any_tensor, a.dim, a.position),
    _row("flip", a.any_tensor, a.dims),
    _row("roll", a.any_tensor, a.small, a.dim),
    _row("rot90", a.any_tensor, a.small),
    _row("tril", a.of_rank(2, 3), a.small),
    _row("triu", a.of_rank(2, 3), a.small),
    _row("diagonal", a.of_rank(2, 3), a.small),
    _row("diag_embed", a.of_rank(1, 2), a.small),
    _row("Tensor.unfold", a.any_tensor, a.dim, a.one_of(1, 2, 3), a.one_of(1, 2)),
    _row("narrow", a.any_tensor, a.dim, a.one_of(0, 1), a.one_of(0, 1, 2)),
    _row("chunk", a.any_tensor, a.sections, a.dim),
    _row("tensor_split", a.any_tensor, a.sections, a.dim),
    _row("split", a.any_tensor, a.sections, a.dim),
    _row("unbind", a.of_rank(1, 2, 3), a.dim),
    _row("repeat_interleave", a.any_tensor, a.sections, a.dim),
    _row("Tensor.repeat", a.of_rank(0, 1, 2), a.one_of([2, 1], [1, 3], [2, 2, 1])),
    _row("cat", a.several(a.any_tensor), a.dim),
    _row("stack", a.several(a.any_tensor), a.dim),
    _row("Tensor.contiguous", a.any_tensor),
    _row("Tensor.detach", a.any_tensor),
    _own("Tensor.to", cast, a.any_tensor, a.dtype),
    _row("Tensor.type_as", a.any_tensor, a.any_tensor),
    _row("Tensor.new_full", a.any_tensor, a.one_of([2], [2, 3], []), a.number),
    _row("zeros_like", a.any_tensor, dtype=a.dtype),
    _row("full_like", a.any_tensor, a.number),
    _row("F.pad", a.any_tensor, a.pads),
    # indexing
    _own("get_item", get_item, a.any_tensor, a.slices),
    _own("get_by_list", get_by_list, a.any_tensor, a.dim, a.indices()),
    _own("get_by_two_lists", get_by_two_lists, a.any_tensor, a.dim, a.indices(), a.indices()),
    _own("gathered", gathered, a.any_tensor, a.dim, a.indices()),
    _own("scatter_added", scatter_added, a.any_tensor, a.dim, a.indices()),
    _own("select_where", select_where, a.any_tensor, a.number),
    _row("masked_select", a.any_tensor, a.mask),
    _row("masked_fill", a.any_tensor, a.mask, a.number),
    _row("nonzero", a.any_tensor),
    _row("unique", a.any_tensor),
    _row("take_along_dim", a.any_tensor, a.ints, a.dim),
    _row("bincount", a.ints),
    _own("searchsorted", searched, a.of_rank(1), a.floats),
    # matrices and networks
    _row("matmul", a.of_rank(1, 2, 3), a.matrix_for),
    _row("mm", a.of_rank(2), a.matrix_for),
    _row("outer", a.of_rank(1), a.of_rank(1)),
    _row("dot", a.of_rank(1), a.alike),
    _row("F.linear", a.of_rank(1, 2, 3), a.weight_for),
    _row("addmv", a.of_rank(1), a.of_rank(2), a.of_rank(1)),
    _row("linalg.matrix_norm", a.of_rank(2, 3)),
    _row("kron", a.of_rank(1, 2), a.of_rank(1, 2)),
    _row("cdist", a.of_rank(2), a.weight_for),
    _row("F.layer_norm", a.of_rank(1, 2, 3), a.last_size),
    _row("F.rms_norm", a.of_rank(1, 2, 3), a.last_size),
    _row("F.normalize", a.of_rank(2, 3), dim=a.dim),
    _row("F.softmin", a.floats, dim=a.dim),
    _row("F.glu", a.of_rank(1, 2, 3), a.dim),
    _row("F.avg_pool1d", a.of_rank(2, 3), a.one_of(1, 2), ceil_mode=a.flag),
    _row("F.max_pool1d", a.of_rank(2, 3), a.one_of(1, 2), ceil_mode=a.flag),
    _row("F.adaptive_avg_pool1d", a.of_rank(2, 3), a.one_of(1, 2, 3)),
    _row("F.mse_loss", a.floats, a.alike, reduction=a.one_of("mean", "sum", "none")),
    _row("F.huber_loss", a.floats, a.alike, delta=a.positive),
    _row("F.smooth_l1_loss", a.floats, a.alike, beta=a.positive),
    _row("F.cosine_similarity", a.of_rank(2, 3), a.alike, a.dim),
    _own("embedded", embedded, a.of_rank(2), a.indices()),
    _own("cross_entropy", cross_entropy, a.of_rank(2, 3), a.indices()),
    _own("attention", attention, a.of_rank(2, 3, 4), a.flag),
    _own("batch_norm", batch_norm, a.of_rank(2, 3)),
    _row("fft.fft", a.of_rank(1, 2)),
    _row("trapezoid", a.floats, dim=a.dim),
    _row("vander", a.of_rank(1)),
    _row("combinations", a.of_rank(1)),
    _row("cartesian_prod", a.of_rank(1), a.of_rank(1)),
    _row("histc", a.floats, a.one_of(3, 5), a.one_of(-2), a.one_of(2)),
)

_UNARY_WRITES = [
    "neg_",
    "abs_",
    "exp_",
    "sigmoid_",
    "tanh_",
    "relu_",
    "zero_",
    "floor_",
    "square_",
    "sqrt_",
    "logical_not_",
]
_BINARY_WRITES = """
    add_ sub_ mul_ div_ remainder_ floor_divide_ pow_ eq_ lt_ copysign_ logical_and_ fmod_
""".split()  # noqa: SIM905
WRITES: tuple[Call, ...] = (
    *[_row(f"Tensor.{n}", a.any_tensor) for n in _UNARY_WRITES],
    *[_row(f"Tensor.{n}", a.any_tensor, a.into_subject) for n in _BINARY_WRITES],
    _row("Tensor.clamp_", a.any_tensor, a.number, a.number),
    _row("Tensor.fill_", a.any_tensor, a.number),
    _row("Tensor.masked_fill_", a.any_tensor, a.mask, a.number),
    _row("Tensor.cumsum_", a.any_tensor, a.dim),
    _row("Tensor.lerp_", a.floats, a.alike, a.positive),
    _row("Tensor.addcmul_", a.floats, a.alike, a.alike),
    _row("Tensor.t_", a.of_rank(2)),
    _row("Tensor.squeeze_", a.any_tensor),
    _row("Tensor.unsqueeze_", a.any_tensor, a.dim),
    _own("with_values_of", with_values_of, a.any_tensor, a.into_subject),
    _own("set_item", set_item, a.any_tensor, a.slices, a.number),
    _own("set_by_list", set_by_list, a.any_tensor, a.dim, a.indices(), a.number),
    _own("set_where", set_where, a.any_tensor, a.number),
    _own("accumulate_at", accumulate_at, a.any_tensor, a.dim, a.indices()),
)
