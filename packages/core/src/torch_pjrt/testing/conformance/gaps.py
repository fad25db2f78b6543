"""What does not conform yet, and why; and where PyTorch's own tolerance is too narrow, and why.

A row covers each combination of its words. It is strict: a case that passes has no row, but of those that
vary.

    notyet    we mean to do it
    varies    passes with some processors and fails with others: their vectors are of other widths, and sums
              in another order
    upstream  waits for a change in JAX, XLA or PyTorch
    never     has no meaning on an accelerator
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_pjrt.testing.conformance.cases import Case


@dataclass(frozen=True, slots=True)
class Gap:
    """Cases that fail: `operators`, `dtypes` and `kinds` are words, all combinations are meant."""

    operators: str
    dtypes: str
    kinds: str
    status: str
    why: str

    def cases(self) -> Iterator[Case]:
        """The cases that the row covers."""
        for operator in self.operators.split():
            for dtype in self.dtypes.split():
                for kind in self.kinds.split():
                    yield Case(operator, dtype, kind)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A wider tolerance than PyTorch's own, for each combination of the row's words."""

    operators: str
    dtypes: str
    kinds: str
    rtol: float
    atol: float
    why: str


@dataclass(frozen=True, slots=True)
class OnCpu:
    """Operators (overloads, as words) that the CPU computes, with a copy there and back; and why."""

    overloads: str
    why: str


VARIES = "varies"
_CANCELLING = "other roundings than the CPU's on the way: terms that cancel or nearly do"
_DECOMPOSED = (
    "derivatives of decompositions have differences of values that lie close together below the line: "
    "up to 4e-5 of roundings, of either LAPACK; in double precision they agree"
)

GAPS: tuple[Gap, ...] = (
    Gap(
        "nn.functional.cross_entropy",
        "bfloat16",
        "second",
        "notyet",
        _CANCELLING,
    ),
    Gap(
        "nn.functional.linear_cross_entropy",
        "bfloat16 float16",
        "second",
        "notyet",
        _CANCELLING,
    ),
    Gap(
        "nn.functional.linear_cross_entropy.chunked",
        "bfloat16 float16",
        "forward gradient second",
        "notyet",
        _CANCELLING,
    ),
    Gap(
        "nn.functional.linear_cross_entropy.chunked_none",
        "bfloat16 float16",
        "forward gradient",
        "notyet",
        _CANCELLING,
    ),
    Gap(
        "nn.functional.multilabel_soft_margin_loss dist linalg.vector_norm",
        "bfloat16",
        "second",
        "notyet",
        _CANCELLING,
    ),
    Gap(
        "ldexp",
        "bfloat16",
        "gradient",
        "notyet",
        (
            "the power is not rounded to bfloat16 before the product: 186 for the CPU's "
            "185, exact 185.63"
        ),
    ),
    Gap(
        "matrix_exp",
        "float32 bfloat16 float16",
        "second",
        "notyet",
        "squared another number of times than on CPU; halves overflow on the way",
    ),
    Gap(
        "polar",
        "float32",
        "second",
        "notyet",
        "sums in another order where terms cancel",
    ),
    Gap(
        (
            "svd svd_lowrank pca_lowrank linalg.svd linalg.eig linalg.eigvals "
            "linalg.householder_product linalg.lstsq linalg.lstsq.grad_oriented"
        ),
        "float32",
        "second",
        VARIES,
        _DECOMPOSED,
    ),
    Gap("linalg.eig", "float32", "gradient", VARIES, _DECOMPOSED),
    Gap(
        (
            "linalg.eig linalg.eigvals linalg.eigh linalg.cond linalg.pinv.singular linalg.lstsq "
            "linalg.lstsq.grad_oriented"
        ),
        "complex64",
        "second",
        VARIES,
        _DECOMPOSED,
    ),
    Gap("index_reduce.prod", "float32 float16", "second", VARIES, _CANCELLING),
    Gap("masked.prod", "float32", "second", VARIES, _CANCELLING),
    Gap("nn.functional.poisson_nll_loss", "float16", "second", VARIES, _CANCELLING),
    Gap("nn.functional.gaussian_nll_loss", "bfloat16", "gradient second", VARIES, _CANCELLING),
    Gap(
        "native_batch_norm _native_batch_norm_legit",
        "float32 float64 bfloat16 float16",
        "out",
        "notyet",
        "the CPU leaves out statistics in evaluation, also with `out=`",
    ),
    Gap(
        "nn.functional.avg_pool3d",
        "float32 float64 int64",
        "out",
        "never",
        "the CPU writes to a strided `out=` as if it were contiguous",
    ),
    Gap(
        "narrow_copy",
        "float32 float64 bfloat16 float16 int64 int32 uint8 bool complex64",
        "out",
        "never",
        "the CPU writes to a strided `out=` as if it were contiguous",
    ),
    Gap(
        "nn.functional.soft_margin_loss",
        "float16",
        "second",
        "never",
        (
            "the CPU's exp overflows float16 to NaN where the slope is finite; here it is "
            "computed wide"
        ),
    ),
    Gap(
        "nn.functional.scaled_dot_product_attention",
        "float32 float64 bfloat16 float16",
        "second",
        "never",
        ("the backward of the CPU's flash kernel has no derivative and raises; here there is one"),
    ),
    Gap(
        "nn.functional.scaled_dot_product_attention",
        "bfloat16 float16",
        "gradient",
        "never",
        (
            "where a bias wants a gradient, the CPU leaves its kernel for one in float32; here the "
            "weights are rounded for the products, as they are without"
        ),
    ),
    Gap(
        "nn.functional.scaled_dot_product_attention",
        "float32 float64",
        "gradient",
        "never",
        (
            "of 3 dims, the CPU composes it, and the key's gradient has the strides of a transposed "
            "matrix; here it is the operator of 4 dims, whose gradients are contiguous then"
        ),
    ),
    Gap(
        "mode sort msort",
        "bfloat16 float16",
        "second",
        "never",
        "which of equal elements has the gradient is not defined",
    ),
    Gap(
        "topk",
        "bfloat16",
        "second",
        "never",
        "which of equal elements has the gradient is not defined",
    ),
    Gap(
        "narrow_copy",
        "any",
        "error",
        "never",
        "the CPU's text asks for a better one; ours is that of `narrow`",
    ),
    Gap(
        "erfinv",
        "float32",
        "gradient second",
        "notyet",
        "the slope near 1 is exp of a square: an ulp of the value is many of the slope",
    ),
    Gap(
        "logcumsumexp",
        "complex64",
        "second",
        "notyet",
        ("the derivative is exp of sums of logarithms: an ulp of an angle is many of the result"),
    ),
    Gap(
        "linalg.solve_triangular",
        "complex64",
        "gradient second",
        "notyet",
        (
            "the CPU solves a conjugated transpose without copying it, into contiguous "
            "memory; the conjugation is not seen here"
        ),
    ),
)

ON_CPU: tuple[OnCpu, ...] = (
    OnCpu(
        (
            "aten._batch_norm_with_update.default "
            "aten._unique.default "
            "aten.addbmm_.default "
            "aten.masked_fill.Tensor "
            "aten.masked_select.out"
        ),
        "it has neither a rule nor a decomposition that can be recorded",
    ),
    OnCpu(
        (
            "aten._sparse_mm_reduce_impl.default "
            "aten._sparse_mm_reduce_impl_backward.default "
            "aten.sparse_sampled_addmm.out"
        ),
        "on sparse tensors, and not written with operators on their parts",
    ),
    OnCpu(
        (
            "aten.linalg_ldl_factor_ex.default aten.linalg_ldl_factor_ex.out "
            "aten.linalg_ldl_solve.default aten.linalg_ldl_solve.out"
        ),
        "XLA has no Bunch-Kaufman factorization, and the result is LAPACK's pivot format",
    ),
)

TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(
        "cdist",
        "float32",
        "gradient",
        rtol=1.3e-6,
        atol=3e-5,
        why=(
            "Euclidean distances by a product: squares cancel. Of 300 draws of one sample the CPU was "
            "up to 2e-3 from the gradient in double precision, here 7e-4; medians 4e-6 and 3e-6"
        ),
    ),
    Tolerance(
        "matrix_exp",
        "complex64",
        "second",
        rtol=2e-6,
        atol=1e-5,
        why="numbers of up to 4e5, sums of powers: 13 roundings of the largest, and 10 are allowed",
    ),
    Tolerance(
        "nn.functional.multilabel_soft_margin_loss",
        "float16",
        "forward",
        rtol=1e-3,
        atol=0.03,
        why="a mean of five numbers of up to 72 that cancel to 4: half an ulp of 72 is 0.03",
    ),
    Tolerance(
        "cov",
        "float32",
        "gradient",
        rtol=1.3e-6,
        atol=6e-5,
        why="of two weights it is 0, by terms of more than 256: two of their ulps",
    ),
    Tolerance(
        "nn.functional.normalize",
        "float16",
        "gradient",
        rtol=1e-3,
        atol=1e-3,
        why="of a number divided by its size it is 0: the difference of two terms near 1, by an ulp",
    ),
)


def gap_of() -> dict[Case, Gap]:
    """The row of each case that is known to fail."""
    return {case: gap for gap in GAPS for case in gap.cases()}


def on_cpu() -> dict[str, str]:
    """Why an overload may run on the CPU."""
    return {overload: row.why for row in ON_CPU for overload in row.overloads.split()}


def tolerance(case: Case) -> tuple[float, float] | None:
    """(rtol, atol) of a case that needs more than PyTorch's own; None for the others."""
    for row in TOLERANCES:
        if (
            case.operator in row.operators.split()
            and case.dtype in row.dtypes.split()
            and case.kind in row.kinds.split()
        ):
            return row.rtol, row.atol
    return None
