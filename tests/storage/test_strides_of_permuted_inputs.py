"""Results have the CPU's strides for inputs of every order of dims; pointwise operators for all mixtures.

TORCH_PJRT_TEST_STRIDES=1 takes every pair of shapes for the pointwise operators, instead of some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from this_cpu import CONVOLVES_BFLOAT16
from torch_pjrt.lowering import CORE
from torch_pjrt.overloads import Absent, aten, named

Tensor = torch.Tensor
Order = tuple[int, ...]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def ordered(
    device: str, sizes: tuple[int, ...], order: Order, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A tensor of these sizes whose dims lie in memory in an order, the slowest first."""
    flat = torch.ones([sizes[i] for i in order], dtype=dtype).to(device)
    return flat.permute([order.index(i) for i in range(len(sizes))])


def strides(x: Any) -> list[list[int]]:
    """Of the results, but for dims of size 1, in which nobody takes a step."""
    results = x if isinstance(x, (list, tuple)) else [x]
    return [
        [s for s, n in zip(y.stride(), y.shape, strict=True) if n != 1]
        for y in results
        if isinstance(y, Tensor)
    ]


def like(x: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.ones(shape, dtype=dtype or x.dtype, device=x.device)


def unpooled(x: Tensor) -> Tensor:
    return F.max_unpool2d(x, like(x, *x.shape, dtype=torch.int64), (2, 2))


def losses(x: Tensor) -> list[Tensor]:
    """With the input, and then with the target in this order."""
    target = (x[:, 0] * 0).long().contiguous()
    other = like(x, x.shape[0], 2, *x.shape[1:])
    return [
        F.nll_loss(x, target, reduction="none"),
        F.nll_loss(other, (x * 0).long(), reduction="none"),
    ]


def stacked(x: Tensor) -> list[Tensor]:
    others = (x, x.contiguous())
    return [torch.stack([x, y], dim) for y in others for dim in range(4)]


def solved(x: Tensor) -> list[Tensor]:
    matrices = torch.eye(6, 4).to(x.device).expand(len(x), 6, 4)
    sides = like(x, len(x), 6, 3) * x[:, :1, :1]
    return [
        y
        for a, b in (
            (matrices, sides),
            (x[:, :3, :2], like(x, len(x), 3)),
            (x[0, :3, :2], like(x, 3)),
        )
        for y in torch.linalg.lstsq(a, b)
    ]


def factored(x: Tensor) -> list[Tensor]:
    return list(torch.linalg.ldl_factor(torch.eye(4).to(x.device) * x[:, :1, :1]))


def drawn(x: Tensor) -> list[Tensor]:
    return [torch.normal(x, x), torch.normal(x, 1.0), torch.normal(0.0, x)]


def selected(x: Tensor) -> Tensor:
    return x.index_select(1, torch.zeros(2, dtype=torch.int64, device=x.device))


#   name                        how many dims, the call
OPERATORS: dict[str, tuple[int, Callable[[Tensor], Any]]] = {
    "max_pool1d":               (3, lambda x: F.max_pool1d(x, 2)),
    "max_pool1d with gradient": (3, lambda x: F.max_pool1d(x.detach().requires_grad_(), 2)),
    "max_pool1d with indices":  (3, lambda x: F.max_pool1d(x, 2, return_indices=True)),
    "avg_pool1d":               (3, lambda x: F.avg_pool1d(x, 2)),
    "adaptive_avg_pool1d":      (3, lambda x: F.adaptive_avg_pool1d(x, 2)),
    "channel_shuffle":          (4, lambda x: F.channel_shuffle(x, 2)),
    "channel_shuffle of rows":  (3, lambda x: F.channel_shuffle(x, 2)),
    "pixel_shuffle":            (4, lambda x: F.pixel_shuffle(x, 2)),
    "max_unpool2d":             (4, unpooled),
    "nll_loss":                 (4, losses),
    "native_dropout_backward":  (4, lambda x: aten.native_dropout_backward.default(x, x > 0, 2.0)),
    "stack":                    (3, stacked),
    "cat":                      (4, lambda x: [torch.cat([x, y], 1) for y in (x, x.contiguous())]),
    "lstsq":                    (3, solved),
    "ldl_factor":               (3, factored),
    "normal":                   (3, drawn),
    "logsigmoid":               (3, F.logsigmoid),
    "copysign":                 (3, lambda x: torch.copysign(x, x[0, 0])),
    "sort":                     (3, lambda x: x.sort(1)),
    "cumsum":                   (3, lambda x: x.cumsum(1)),
    "sum":                      (4, lambda x: [x.sum(dim, keepdim=True) for dim in range(4)]),
    "softmax":                  (4, lambda x: x.softmax(1)),
    "interpolate":              (4, lambda x: F.interpolate(x, scale_factor=2)),
    "batch_norm":               (4, lambda x: F.batch_norm(x, None, None, training=True)),
    "index_select":             (3, selected),
    "gather":                   (3, lambda x: x.gather(1, (x * 0).long())),
    "einsum":                   (3, lambda x: torch.einsum("abc,adc->bd", x, x)),
}  # fmt: skip
SIZES = ((2, 4, 6, 6), (1, 4, 6, 6))
ONE_SIZE = {"batch_norm", "ldl_factor", "max_unpool2d"}  # slow, or ambiguous for one image


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_has_the_strides_of_the_cpu_for_each_order_of_dims(name: str) -> None:
    n_dims, call = OPERATORS[name]
    for sizes, order in product(SIZES[: 1 if name in ONE_SIZE else 2], permutations(range(n_dims))):
        theirs, ours = (
            strides(call(ordered(device, sizes[:n_dims], order))) for device in ("cpu", "pjrt")
        )
        assert ours == theirs, (sizes, order)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "transposed"])
@pytest.mark.parametrize("n_dims", [1, 2, 3])
def test_a_convolution_has_the_strides_of_the_cpu(n_dims: int, transposed: bool) -> None:
    convolve = getattr(F, f"conv_transpose{n_dims}d" if transposed else f"conv{n_dims}d")
    straight = tuple(range(n_dims + 2))
    orders = (
        list(permutations(straight)) if n_dims < 3 else [straight, (0, 2, 3, 4, 1), (4, 3, 2, 1, 0)]
    )
    weights = [straight, (0, *straight[2:], 1)]
    narrow = n_dims == 1 or (n_dims == 3 and CONVOLVES_BFLOAT16)
    dtypes = (torch.float32, torch.float64, torch.bfloat16)[: 3 if narrow else 2]
    for (n, c, o), order, dtype, weight in product(
        ((1, 3, 3), (2, 4, 1), (1, 1, 2)), orders, dtypes, weights
    ):
        shape = (c, o) if transposed else (o, c)
        theirs, ours = (
            convolve(
                ordered(device, (n, c, 5, 6, 4)[: n_dims + 2], order, dtype),
                ordered(device, (*shape, *[3] * n_dims), weight, dtype),
            ).stride()
            for device in ("cpu", "pjrt")
        )
        assert ours == theirs, (n, c, o, order, dtype, weight)


#   sizes, and the order of their dims
LOOKS: list[tuple[tuple[int, ...], Order]] = [
    ((3, 4), (0, 1)),
    ((3, 4), (1, 0)),
    ((2, 3, 4), (2, 1, 0)),
    ((1, 3, 1), (0, 1, 2)),
    ((2, 1, 4), (1, 2, 0)),
    ((), ()),
    ((4,), (0,)),
    ((2, 3, 4), (0, 1, 2)),
    ((2, 3, 4), (1, 0, 2)),
    ((1, 3, 4), (0, 2, 1)),
    ((2, 3, 1), (2, 1, 0)),
    ((1, 3, 4), (1, 2, 0)),
]
ALL = bool(os.environ.get("TORCH_PJRT_TEST_STRIDES"))
PAIRS = list(product(LOOKS if ALL else LOOKS[:4], repeat=2))
_PLAIN = {"Tensor": None, "number": 1.5, "float": 0.5, "int": 1, "bool": False}


def pointwise() -> Iterator[Any]:
    """The functional overloads of several tensors that PyTorch says are pointwise."""
    for full_name in torch._C._dispatch_get_all_op_names():
        op = named(full_name.removeprefix("aten::")) if full_name.startswith("aten::") else None
        if op is None or isinstance(op, Absent) or torch.Tag.pointwise not in op.tags:
            continue
        schema = op._schema
        needed = [a for a in schema.arguments if not a.has_default_value()]
        if (
            not schema.is_mutable
            and sum(str(a.type) == "Tensor" for a in schema.arguments) > 1
            and all(str(a.type) in _PLAIN for a in needed)
            and not torch._C._dispatch_has_kernel_for_dispatch_key(
                full_name, "CompositeImplicitAutograd"
            )
        ):
            yield op


@pytest.mark.slow
def test_pointwise_operators_have_the_strides_of_the_cpu_for_tensors_that_lie_differently() -> None:
    halves = (torch.float32, torch.float64)
    n = 0
    for op, (a, b), dtypes in product(
        list(pointwise()), PAIRS, ((torch.float32,) * 2, halves, halves[::-1])
    ):
        looks = [(*a, dtypes[0]), (*b, dtypes[1]), (*LOOKS[2], dtypes[0])]

        def outcome(device: str, op: Any = op, looks: list[Any] = looks) -> Any:
            rest = iter(looks)
            given = [
                ordered(device, *next(rest)) if str(x.type) == "Tensor" else _PLAIN[str(x.type)]
                for x in op._schema.arguments
                if not x.kwarg_only and (str(x.type) == "Tensor" or not x.has_default_value())
            ]
            try:
                result = op(*given)
            except (RuntimeError, NotImplementedError):
                return None  # how it is refused, other tests say
            return result.stride() if isinstance(result, Tensor) else None

        theirs = outcome("cpu")
        if theirs is not None:
            n += 1
            assert outcome("pjrt") == theirs, (op, looks)
    assert n > 1500


# Not element by element: products of matrices and folds, whose strides `OPERATORS` holds.
_OTHERS = frozenset(["linalg_lstsq", "_softmax_backward_data", "_log_softmax_backward_data"])


def has_a_test_kernel(op: Any) -> bool:
    """Whether its CPU kernel is in Python: the samples bring some for operators that the CPU lacks."""
    kernels = torch._C._dispatch_dump(op.name())
    return bool(re.search(r"^CPU: registered at .*\.py:", kernels, re.MULTILINE))


def of_several_tensors() -> Iterator[Any]:
    """Overloads of our table that take several tensors, two or three, and are not said to be pointwise."""
    for op in CORE:
        if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
            continue
        arguments = op._schema.arguments
        needed = [a for a in arguments if not a.has_default_value()]
        if (
            torch.Tag.pointwise not in op.tags
            and op._schema.name.removeprefix("aten::") not in _OTHERS
            and not has_a_test_kernel(op)
            and sum(str(a.type) == "Tensor" for a in arguments) in (2, 3)
            and all(str(a.type) in _PLAIN or a.name == "reduction" for a in needed)
        ):
            yield op


def test_what_takes_tensors_of_one_shape_has_the_strides_of_the_cpu() -> None:
    orders = [(0, 1, 2), (2, 1, 0), (1, 0, 2)]
    n = 0
    for op, looks in product(list(of_several_tensors()), product(orders, repeat=2)):

        def outcome(device: str, op: Any = op, looks: tuple[Order, ...] = looks) -> Any:
            rest = iter((*looks, looks[0]))
            given = [
                ordered(device, (2, 3, 4), next(rest))
                if str(a.type) == "Tensor"
                else 0
                if a.name == "reduction"
                else a.default_value
                if a.has_default_value()
                else _PLAIN[str(a.type)]
                for a in op._schema.arguments
                if not a.kwarg_only
            ]
            try:
                return strides(op(*given))
            except (RuntimeError, IndexError, TypeError):
                return None  # it takes other tensors

        theirs = outcome("cpu")
        if theirs is not None:
            n += 1
            assert outcome("pjrt") == theirs, (op, looks)
    assert n > 200
