"""Values that an operator refuses: chances over 1, a divisor of 0, a matrix of nans.

The CPU looks at them during the call. The device looks while it runs, as it does for indices out of range
(`tensor/checks/bounds.py`): the error comes with the next read or `synchronize()`. An operator is a row
of `FAULTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from torch_pjrt import operators
from torch_pjrt.graph.tape import Uploaded, state
from torch_pjrt.observe.causes import because
from torch_pjrt.overloads import aten
from torch_pjrt.run.deferred_checks import Refusal, look
from torch_pjrt.run.sync import sync
from torch_pjrt.tensor.checks.bounds import RangeCheck, defer_check, known_to_be_inside, not_true
from torch_pjrt.tensor.padding.padded import count_tensor, padded_view
from torch_pjrt.tensor.padding.recorded import with_rest
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.schema import functional_form
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt
from torch_pjrt.tensor.storage.counts import is_data_dependent
from torch_pjrt.tensor.storage.transfer import host_view

Given = dict[str, Any]


class Fault(NamedTuple):
    """A tensor without faults of a kind (`operators.FAULTS`), or a refusal of the first one (from 1 on)."""

    tensor: torch.Tensor
    kind: str
    refusal: Refusal


Row = Callable[[Given], Iterator[Fault | RangeCheck]]

_NO_CHANCE = not_true("p_in >= 0 && p_in <= 1")


def _each(*rows: tuple[str, str, str]) -> Row:
    """By name of the argument: the kind of fault, and PyTorch's text."""

    def faults(given: Given) -> Iterator[Fault]:
        for name, kind, text in rows:
            yield Fault(given[name], kind, lambda _, text=text: RuntimeError(text))

    return faults


def _no_division(_: int) -> Exception:
    return RuntimeError("ZeroDivisionError")


def _divisor(given: Given) -> Iterator[Fault]:
    x, other = given["self"], given["other"]
    if given.get("rounding_mode", "floor") is None or not is_pjrt(other):
        return
    if _is_whole(x) and _is_whole(other) and not _is_known_not_to_be_zero(other):
        yield Fault(other, "zero", _no_division)


def _is_whole(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return not (x.dtype.is_floating_point or x.dtype.is_complex)
    return isinstance(x, int)


def _is_known_not_to_be_zero(x: torch.Tensor) -> bool:
    """Whether the host knows it. Raises if it knows the contrary; else it reads nothing."""
    buffer = buffer_of(x)
    value = None if is_data_dependent(buffer) else buffer.value
    if not isinstance(value, Uploaded) or value.spec.dtype != x.dtype:
        return False
    if value.range[0] > 0 or value.range[1] < 0 or not x.numel():
        return True
    if 0 in value.range and x.numel() >= value.spec.numel:
        with because("a check of divisors"):
            if (host_view(x) == 0).any():
                raise _no_division(0)
    return False


_NO_SEGMENT = not_true("segment_length >= 0")


def _lengths(given: Given) -> Iterator[Fault | RangeCheck]:
    lengths, offsets, data = given.get("lengths"), given.get("offsets"), given["data"]
    if offsets is not None:
        sizes, most = offsets.diff(), torch.iinfo(offsets.dtype).max
        yield RangeCheck(sizes, 0, most, lambda _: RuntimeError(_NO_SEGMENT))
    if lengths is None or given.get("unsafe", False):
        return
    size = data.shape[lengths.ndim - 1]
    text = (
        "segment_reduce(): Expected all rows of lengths along axis to sum to "
        "data.size(lengths.dim()-1) when !unsafe."
    )
    negative = "lengths contains negative value!"
    yield Fault(lengths, "less than 0", lambda _: RuntimeError(negative))
    yield RangeCheck(lengths.sum(-1), size, size + 1, lambda _: RuntimeError(text))


def _marked(given: Given) -> Iterator[RangeCheck]:
    """As many elements as the mask marks; nothing to look at where there are enough for all."""
    mask, source = given["mask"], given["source"]
    shape = torch.broadcast_shapes(given["self"].shape, mask.shape)
    if source.numel() < math.prod(shape) and mask.dtype == torch.bool:
        text = "Number of elements of source < number of ones in mask"
        marked = mask.expand(shape).sum()
        yield _at_most_numel(marked, source, lambda _: RuntimeError(text))


def _at_most_numel(number: torch.Tensor, x: torch.Tensor, refusal: Refusal) -> RangeCheck:
    """The 0-d `number` is at most `x.numel()`; what only values decide of that is no part of the program."""
    numel = x.numel()
    view = padded_view(x) if is_pjrt(x) else None
    if view is None or not view.count.n:
        return RangeCheck(number, 0, numel + 1, refusal)
    rows = numel // view.count.n
    beyond = number - count_tensor(view.count) * (view.count.scale * rows)
    return RangeCheck(beyond, torch.iinfo(torch.int64).min, 1, refusal)


def _of_batch(n_dims: int, which: int) -> str:
    return f"(Batch element {which}): " if n_dims > 2 else ""


def _spectrum(name: str, kind: str, argument: str, text: str, error: type[Exception]) -> Row:
    """Matrices that LAPACK does not take; `which` of a batch stands before the text."""

    def faults(given: Given) -> Iterator[Fault]:
        x = given[argument]
        n_dims = x.ndim

        def refusal(found: int) -> Exception:
            return error(f"{name}: {_of_batch(n_dims, found - 1)}{text}")

        yield Fault(x, kind, refusal)

    return faults


def _symmetric(given: Given) -> Iterator[Fault]:
    """Only one triangle is read. LAPACK finds nothing wrong with matrices of two rows."""
    x = given["A"]
    n, n_dims = x.shape[-1], x.ndim
    if n < 3:
        return
    code = n - 1 if given.get("compute_v", True) else n - 2
    triangle = "below" if given.get("UPLO", "L").upper() == "L" else "above"

    def refusal(found: int) -> Exception:
        return torch.linalg.LinAlgError(  # pyright: ignore[reportPrivateImportUsage]
            f"linalg.eigh: {_of_batch(n_dims, found - 1)}The algorithm failed to converge because the "
            f"input matrix is ill-conditioned or has too many repeated eigenvalues (error code: {code})."
        )

    yield Fault(x, f"nan {triangle} the diagonal", refusal)


def _inverse_of_triangle(given: Given) -> Iterator[Fault]:
    x = given["self"]
    n, n_dims = x.shape[-1], x.ndim

    def refusal(found: int) -> Exception:
        which, position = divmod(found - 1, n)
        return torch.linalg.LinAlgError(  # pyright: ignore[reportPrivateImportUsage]
            f"cholesky_inverse: {_of_batch(n_dims, which)}The diagonal element {position + 1} is zero, the "
            "inversion could not be completed because the input matrix is singular."
        )

    if n:
        yield Fault(x, "zero on the diagonal", refusal)


def _zero_points(given: Given) -> Iterator[RangeCheck]:
    low, high = given["quant_min"], given["quant_max"]
    text = "`zero_point` must be between `quant_min` and `quant_max`."
    zero_point = given["zero_point"]
    if not zero_point.is_floating_point():
        yield RangeCheck(zero_point, low, high + 1, lambda _: RuntimeError(text))


def _pivots_to_unpack(given: Given) -> Iterator[RangeCheck]:
    text = (
        "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
        "Did you properly pass the result of lu_factor?"
    )
    if given.get("unpack_pivots", True):
        rows = given["LU_data"].shape[-2]
        yield RangeCheck(given["LU_pivots"], 1, rows + 1, lambda _: RuntimeError(text))


def _pivots(given: Given) -> Iterator[RangeCheck]:
    def refusal(pivot: int) -> Exception:
        limit = "greater or equal to 1" if pivot < 1 else "smaller or equal to LU.size(-2)"
        return RuntimeError(
            f"Pivots given to lu_solve must all be {limit}. "
            "Did you properly pass the result of lu_factor?"
        )

    yield RangeCheck(given["pivots"], 1, given["LU"].shape[-2] + 1, refusal)


def _repeated(given: Given) -> Iterator[Fault | RangeCheck]:
    """As often as is said; where nothing is said, the kernel reads it."""
    repeats, size = given["repeats"], given.get("output_size")
    if size is None:
        return
    text = "allocated size does not match required size"
    yield Fault(repeats, "less than 0", lambda _: RuntimeError("repeats can not be negative"))
    yield RangeCheck(repeats.sum(), size, size + 1, lambda _: RuntimeError(text))


def _ranks(given: Given) -> Iterator[Fault]:
    q = given["q"].detach()
    if q.dtype == given["self"].dtype:
        text = "quantile() q values must be in the range [0, 1]"
        yield Fault(q, "no chance", lambda _: RuntimeError(text))


def _asserted(given: Given) -> Iterator[Fault]:
    text = given.get("assert_msg", "Expected Tensor with single nonzero value, but got zero")
    yield Fault(given["self"], "zero", lambda _: RuntimeError(text or "Assertion is failed"))


def _range(text: str) -> Row:
    """Of a histogram that takes its range from the elements."""

    def faults(given: Given) -> Iterator[Fault]:
        if given.get("range") is None and given.get("min", 0) == given.get("max", 0):
            yield Fault(given["self"], "not finite", lambda _: RuntimeError(text))

    return faults


_range_of_dims = _range("torch.histogramdd: a dimension's range is not finite")


def _inverted(given: Given) -> Iterator[Fault | RangeCheck]:
    if given.get("hermitian", False):
        yield from _symmetric({"A": given["self"]})
    else:
        yield from _svd({"A": given["self"]})


def _equations(given: Given) -> Iterator[Fault]:
    text = "torch.linalg.lstsq: an argument of LAPACK's routine has an illegal value: there is a nan in it."
    for name in ("self", "b"):
        x = given[name]
        if x.ndim < given["self"].ndim:
            x = x.unsqueeze(-1)
        yield Fault(x, "nan in a matrix", lambda _: RuntimeError(text))


# What C++ calls the dtypes, and which numbers it takes: of an unsigned one, negative ones that wrap around.
_NARROW = {
    torch.uint8: ("uint8_t", -255, 255),
    torch.int8: ("int8_t", -128, 127),
    torch.int16: ("int16_t", -(1 << 15), (1 << 15) - 1),
    torch.int32: ("int", -(1 << 31), (1 << 31) - 1),
}


def _extreme(fold: Any) -> Row:
    """The largest or least of all, written to an `out=` of a narrower dtype."""

    def faults(given: Given) -> Iterator[RangeCheck]:
        out, x = given.get("out"), given["self"]
        if out is None or out.dtype == x.dtype or out.dtype not in _NARROW or not _is_whole(x):
            return
        if not x.numel() or x.dtype == torch.bool:
            return
        name, low, high = _NARROW[out.dtype]
        text = f"value cannot be converted to type {name} without overflow"
        yield RangeCheck(fold(x).long(), low, high + 1, lambda _: RuntimeError(text))

    return faults


_bernoulli_by_self = _each(("self", "no chance", _NO_CHANCE))
_deviations = _each(("std", "not at least 0", "normal expects all elements of std >= 0.0"))
_eig = _spectrum(
    "torch.linalg.eig",
    "not finite in a matrix",
    "self",
    "input tensor should not contain infs or NaNs.",
    RuntimeError,
)

_svd = _spectrum(
    "linalg.svd",
    "nan in a matrix",
    "A",
    "The algorithm failed to converge because the input matrix contained non-finite values.",
    torch.linalg.LinAlgError,  # pyright: ignore[reportPrivateImportUsage]
)

#   functional overload                 what it refuses
FAULTS: dict[Any, Row] = {
    aten._assert_async.default: _asserted,
    aten._assert_async.msg: _asserted,
    aten._linalg_eigh.default: _symmetric,
    aten._linalg_eigvals.default: _eig,
    aten._histogramdd_bin_edges.default: _range_of_dims,
    aten._histogramdd_from_bin_cts.default: _range_of_dims,
    aten._linalg_svd.default: _svd,
    aten.bernoulli.Tensor: _each(("p", "no chance", _NO_CHANCE)),
    aten.bernoulli.default: _bernoulli_by_self,
    aten.binary_cross_entropy.default: _each(
        ("self", "no chance", "all elements of input should be between 0 and 1"),
        ("target", "no chance", "all elements of target should be between 0 and 1"),
    ),
    aten.cholesky_inverse.default: _inverse_of_triangle,
    aten.div.Tensor_mode: _divisor,
    aten.fake_quantize_per_channel_affine_cachemask.default: _zero_points,
    aten.floor_divide.default: _divisor,
    aten.fmod.Tensor: _divisor,
    aten.histc.default: _range("torch.histc: the range of the elements is not finite"),
    aten.histogram.bin_ct: _range_of_dims,
    aten.linalg_eig.default: _eig,
    aten.linalg_lstsq.default: _equations,
    aten.linalg_lu_solve.default: _pivots,
    aten.linalg_pinv.atol_rtol_tensor: _inverted,
    aten.lu_unpack.default: _pivots_to_unpack,
    aten.masked_scatter.default: _marked,
    aten.max.default: _extreme(torch.max),
    aten.min.default: _extreme(torch.min),
    aten.nanquantile.default: _ranks,
    aten.normal.Tensor_Tensor: _deviations,
    aten.normal.float_Tensor: _deviations,
    aten.poisson.default: _each(
        ("self", "not at least 0", "invalid Poisson rate, expected rate to be non-negative")
    ),
    aten.quantile.default: _ranks,
    aten.remainder.Scalar_Tensor: _divisor,
    aten.remainder.Tensor: _divisor,
    aten.repeat_interleave.Tensor: _repeated,
    aten.segment_reduce.default: _lengths,
}


def looks_at_values(op: Any) -> bool:
    """Whether the operator, a functional overload, refuses some values; 1 is none of them.

    >>> looks_at_values(aten.bernoulli.default), looks_at_values(aten.sin.default)
    (True, False)
    """
    return op in FAULTS


# Their kernels look up what their arguments say, with an error of its own: theirs comes first.
_LOOKS_FIRST = frozenset((aten.nanquantile.default, aten.quantile.default))
# Their kernels may read: an error of what they have read is raised by them, not by the next read.
_READS = frozenset((aten.linalg_lstsq.default,))


def looked_at(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of `op`, which has the device look at the values, if it refuses some."""
    functional = functional_form(op)
    faults_of = FAULTS.get(functional)
    if faults_of is None:
        return kernel
    names = [a.name for a in op._schema.arguments]
    writes = op._schema.is_mutable

    def look_first(*args: Any, **kwargs: Any) -> Any:
        for check in _unknown(faults_of({**dict(zip(names, args, strict=False)), **kwargs})):
            defer_check(check)
        return kernel(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        before = state.tape
        result = None if writes else kernel(*args, **kwargs)  # which may raise
        unknown = list(_unknown(faults_of(given)))
        if writes:  # to what is looked at, perhaps
            result = kernel(*args, **kwargs)
        for check in unknown:
            defer_check(check)
        if unknown and state.tape is not before and functional in _READS:
            sync("read")
            look(wait=True)
        return result

    return look_first if functional in _LOOKS_FIRST else run


def _unknown(faults: Iterator[Fault | RangeCheck]) -> Iterator[RangeCheck]:
    for fault in faults:
        if isinstance(fault, RangeCheck):
            if not known_to_be_inside(fault):
                yield fault
        elif is_pjrt(fault.tensor) and fault.tensor.numel():
            tensor = with_rest(fault.tensor, 1)  # which no kind finds fault with
            found = record.call(operators.fault, (tensor, fault.kind), {})
            yield RangeCheck(found, 0, 1, fault.refusal)
