"""What results look like, and which calls are refused, where PyTorch's meta functions speak for a GPU.

A row of `METAS` takes the place of the meta function. It takes the operator's arguments, with tensors on the
meta device, and raises what the CPU kernel raises, but for what that asks of strides: memory here has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten, present

Optional = torch.Tensor | None


_NAMES = {
    torch.float64: "Double", torch.int8: "Char", torch.uint8: "Byte", torch.int16: "Short",
    torch.int32: "Int", torch.int64: "Long", torch.bool: "Bool", torch.complex64: "ComplexFloat",
    torch.float8_e4m3fn: "Float8_e4m3fn", torch.float8_e5m2: "Float8_e5m2", torch.bfloat16: "BFloat16",
    torch.float16: "Half", torch.float32: "Float",
}  # fmt: skip
_GROUPED = (torch.float32, torch.bfloat16, torch.float16)
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _check(condition: bool, text: str) -> None:
    if not condition:
        raise RuntimeError(text)


def grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: Optional = None,
    bias: Optional = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Of a matrix and a stack of matrices, or of two of a kind."""
    for name, x in (("mat_a", self), ("mat_b", mat2)):
        text = f"Expected {name} to be Float32, BFloat16 or Float16 matrix, got "
        _check(x.dtype in _GROUPED, text + _NAMES.get(x.dtype, str(x.dtype)))
        _check(x.dim() in (2, 3), f"{name} has to be 2 or 3d")
    a_is_2d, b_is_2d = self.dim() == 2, mat2.dim() == 2
    _check(
        (a_is_2d and b_is_2d) or self.size(-1) == mat2.size(-2),
        "contraction dimension of mat_a and mat_b must match",
    )
    _check(
        (offs is not None) == (a_is_2d or b_is_2d),
        "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d",
    )
    if offs is not None:
        _check(offs.dim() == 1, "offs has to be 1D")
        _check(offs.dtype == torch.int32, "Offsets have to be int32")
    _check(bias is None, "Bias not supported yet")
    dtype = self.dtype if out_dtype is None else out_dtype
    _check(dtype == self.dtype, "Grouped gemm output dtype must match `mat_a` dtype")
    shape = _grouped_shape(self, mat2, offs)
    _check(
        self.dtype == mat2.dtype,
        f"expected m1 and m2 to have the same dtype, but got: {_c_name(self)} != {_c_name(mat2)}",
    )
    return torch.empty(shape, dtype=dtype, device="meta")


def _grouped_shape(self: torch.Tensor, mat2: torch.Tensor, offs: Optional) -> tuple[int, ...]:
    rows, columns = self.size(-2), mat2.size(-1)
    if offs is None:
        _check(self.size(0) == mat2.size(0), "batched dimension has to match")
        return self.size(0), rows, columns
    if self.dim() == mat2.dim():
        _check(
            self.size(1) == mat2.size(0),
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{self.size(1)} and {mat2.size(0)}x{columns})",
        )
        return offs.size(0), rows, columns
    stack = mat2 if self.dim() == 2 else self
    _check(offs.size(0) == stack.size(0), "matrix batch sizes have to match")
    return rows, columns


def _c_name(x: torch.Tensor) -> str:
    return {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}[
        x.dtype
    ]


def scaled_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: Optional = None,
    scale_result: Optional = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """With one scale for a matrix, or one for each row of the first and column of the second."""
    for name, x in (("mat_a", self), ("mat_b", mat2)):
        _check(x.dim() == 2, f"{name} must be a matrix")
    (rows, inner), (also_inner, columns) = self.shape, mat2.shape
    _check(
        inner == also_inner,
        f"mat_a and mat_b shapes cannot be multiplied ({rows}x{inner} and {also_inner}x{columns})",
    )
    by_rows = scale_a.shape == (rows, 1) and scale_b.shape == (1, columns)
    if (
        not (scale_a.numel() == scale_b.numel() == 1 or by_rows)
        or not scale_a.dtype == scale_b.dtype == torch.float32
        or not {self.dtype, mat2.dtype} <= set(_FLOAT8)
    ):
        raise ValueError(_configuration(self, mat2, scale_a, scale_b))
    _check(
        bias is None or bias.numel() == columns,
        f"Bias must be size {columns} but got {0 if bias is None else bias.numel()}",
    )
    return torch.empty((rows, columns), dtype=out_dtype or self.dtype, device="meta")


def _configuration(
    self: torch.Tensor, mat2: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> str:
    def described(name: str, x: torch.Tensor, scale: torch.Tensor, last: str) -> str:
        return (
            f"mat_{name}.dtype()={_NAMES[x.dtype]}, scale_{name}.dtype()={_NAMES[scale.dtype]}, "
            f"scale_{name}.size()={list(scale.shape)}{last}scale_{name}.stride()={list(scale.stride())}"
        )

    return (
        "Invalid scaling configuration.\n"
        "- For TensorWise scaling, a and b should be float8, scales should be float and singletons.\n"
        "- For RowWise scaling, a and b should be float8, scales should be float, scale_a should be "
        f"({self.size(0)}, 1) and scale_b should be (1, {mat2.size(1)}), and both should be contiguous.\n"
        f"Got {described('a', self, scale_a, ', ')}, {described('b', mat2, scale_b, ' and ')}"
    )


_HALVES_AND_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _check_dtype(kernel: str, x: torch.Tensor, takes: tuple[torch.dtype, ...]) -> None:
    if x.dtype not in takes:
        described = _NAMES.get(x.dtype, str(x.dtype))
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{described}'")


_FOLDS = ("sum", "prod", "mean", "max", "amax", "min", "amin")


def segment_reduce(data: torch.Tensor, reduce: str, **how: Any) -> torch.Tensor:
    """Lengths are sizes, so no call can be tried on made-up ones: what else is refused is said here."""
    axis, n = how.get("axis", 0), data.dim()
    if not -n <= axis < n:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {axis})"
        )
    _check(
        how.get("indices") is None,
        "segment_reduce(): indices based reduction is not supported yet.",
    )
    name = "lengths" if how.get("offsets") is None else "offsets"
    given = how.get(name)
    if given is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    _check(
        reduce in _FOLDS,
        f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}",
    )
    _check(
        n >= given.dim(),
        f"Expected data.dim() >= {name}_value.dim() to be true, but got false.  (Could this error "
        "message be improved?  If so, please report an enhancement request to PyTorch.)",
    )
    _check(
        axis % n == given.dim() - 1,
        f"segment_reduce(): Expected axis to be the last dimension of {name} but got {axis % n}.",
    )
    if name == "lengths" and not how.get("unsafe", False):
        _check(
            given.numel() > 0,
            "min(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument.",
        )
    _check_dtype(f"_segment_reduce_{name}_cpu_kernel1", given, (torch.int32, torch.int64))
    _check_dtype("_segment_reduce_cpu", data, _HALVES_AND_FLOATS)
    return aten.segment_reduce.default(data, reduce, **how)


def _embedding_bag(op: Any) -> Callable[..., Any]:
    """As on the CPU, where any two dtypes of integers will do."""

    def meta(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *rest: Any) -> Any:
        if indices.dtype != offsets.dtype:
            wide = torch.int64 in (indices.dtype, offsets.dtype)
            dtype = torch.int64 if wide else torch.int32
            indices, offsets = indices.to(dtype), offsets.to(dtype)
        return op(weight, indices, offsets, *rest)

    return meta


def _power(self: torch.Tensor, exponent: Any) -> torch.Tensor:
    """Of bools by a bool bools, which PyTorch's meta function takes for integers."""
    if self.dtype is torch.bool and isinstance(exponent, bool):
        return torch.empty_like(self)
    return aten.pow.Tensor_Scalar(self, exponent)


METAS: dict[Any, Callable[..., Any]] = {
    aten._embedding_bag.default: _embedding_bag(aten._embedding_bag.default),
    aten._embedding_bag_forward_only.default: _embedding_bag(
        aten._embedding_bag_forward_only.default
    ),
    aten._grouped_mm.default: grouped_mm,
    aten._scaled_mm.default: scaled_mm,
    aten.pow.Tensor_Scalar: _power,
    aten.segment_reduce.default: segment_reduce,
}


def _attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional,
    *rest: Any,
    **scale: Any,
) -> tuple[Optional, ...]:
    bias = None if attn_bias is None else torch.empty_like(attn_bias)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), bias


def _standard_gamma(self: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return torch.empty_like(self)


# What some versions of PyTorch from 2.11 on have no meta function for: without one nothing can be compiled
# that calls it. Registered where the installed one has none.
MISSING: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: _attention_backward,
    aten._standard_gamma.default: _standard_gamma,
}


def missing() -> dict[Any, Callable[..., Any]]:
    """The rows of `MISSING` that the installed PyTorch needs."""
    return {
        op: meta
        for op, meta in present(MISSING).items()
        if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "Meta")
    }
