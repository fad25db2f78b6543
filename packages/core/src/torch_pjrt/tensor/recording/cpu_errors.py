"""PyTorch's own errors, word for word: a refused call is tried on CPU, on made-up values.

Meta functions check less than CPU kernels do, and word some errors differently. So a call that is seen
for the first time is tried by the CPU kernel on tensors that look like its arguments, and what that
raises is raised. Larger tensors are tried only where the meta function has refused the call already, or is
known to check too little.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_pjrt.caches import Cache
from torch_pjrt.graph.tensor_spec import storage_extent
from torch_pjrt.tensor.recording.argument_binding import mapped
from torch_pjrt.tensor.recording.own_generator import try_on_cpu
from torch_pjrt.tensor.storage.buffer import buffer_of, spec_and_offset

_SMALL = 1 << 16  # elements: a trial of a call that the meta function accepts
_LARGE = 1 << 26  # elements: a trial of a call that it refuses, or of one that it says little of

# Their meta functions accept what the CPU refuses, by dtypes, shapes or numbers.
_META_CHECKS_LITTLE = frozenset(
    (
        "aten::_histogramdd_bin_edges",
        "aten::aminmax",
        "aten::as_strided_scatter",
        "aten::bucketize",
        "aten::complex",
        "aten::fractional_max_pool2d",
        "aten::fractional_max_pool3d",
        "aten::index_add",
        "aten::index_add_",
        "aten::masked_scatter",
        "aten::masked_scatter_",
        "aten::multinomial",
    )
)


def _in_halves(self: torch.Tensor, *_: Any, **__: Any) -> bool:
    return self.dtype is torch.complex32


def _no_convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *_: Any,
    **__: Any,
) -> bool:
    return min((*stride, *dilation), default=1) < 1 or min(padding, default=0) < 0


# Meta functions accept these calls, the CPU refuses them before it makes anything, however large.
_REFUSED_SOON: dict[str, Callable[..., bool]] = {
    "aten::_fft_c2c": _in_halves,
    "aten::_fft_c2r": _in_halves,
    "aten::convolution": _no_convolution,
}


# What made-up values cannot suit: sizes are among them, or they are all that is looked at.
_VALUES_DECIDE = frozenset(
    (
        "aten::_padded_dense_to_jagged_forward",
        "aten::_validate_compressed_sparse_indices",
        "aten::repeat_interleave",
        "aten::segment_reduce",
    )
)


# What kernels ask of strides: memory here has none.
_ABOUT_STRIDES = ("strides should be multiple of 16 bytes", "Invalid strides/sizes")

# How PyTorch begins to say that it will not write to memory that is used otherwise.
_OVERLAP = "unsupported operation: "
_refused: Cache[Any, str | None] = Cache("overlaps that PyTorch refuses", most=4_096)


class _TooLarge(Exception):
    pass


def check_accepted(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> None:
    """Raise what the CPU kernel raises for a call that the meta function accepts, giving `results`."""
    is_refused = _REFUSED_SOON.get(op._schema.name)
    if is_refused is not None and is_refused(*args, **kwargs):
        raise_if_refused(op, args, kwargs)
    elif not _is_much(results):  # which little may give, too
        check_small(op, args, kwargs)


def _is_much(results: Any) -> bool:
    flat = results if isinstance(results, (list, tuple)) else (results,)
    return sum(t.numel() for t in flat if isinstance(t, torch.Tensor)) > _LARGE


def check_small(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Raise what the CPU kernel raises, if the arguments are small. Returns whether they are."""
    largest = _LARGE if op._schema.name in _META_CHECKS_LITTLE else _SMALL
    return _check(op, args, kwargs, largest)


def raise_if_refused(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the CPU kernel raises for these numbers, whatever the values of the tensors are."""
    _check(op, args, kwargs, _LARGE)


def raise_as_on_cpu(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refusal: Exception
) -> None:
    """Raise what the CPU kernel raises for a call that the meta function refused with `refusal`.

    Returns if the CPU kernel accepts it: the meta function was wrong, and the call is for the CPU.
    Arguments too large to make again raise `refusal` itself.
    """
    try:
        if not _check(op, args, kwargs, _LARGE):
            raise refusal
    finally:
        del refusal  # its traceback holds this frame, and with it the arguments


def _check(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], largest: int) -> bool:
    """Raise what the CPU kernel raises. Returns False where there are too many elements to try it."""
    try:
        error = _tried(op, args, kwargs, largest)
    except _TooLarge:
        return False
    try:
        if error is not None:
            raise error
    finally:
        del error  # its traceback holds this frame, and with it the arguments
    return True


def has_cpu_kernel(op: Any) -> bool:
    """Whether the CPU can run the operator at all."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(
        has(op.name(), key)
        for key in ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    )


def _tried(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], largest: int
) -> Exception | None:
    """The error of the CPU kernel; None if some made-up values suit it, or if it has no kernel.

    Integers are tried as 0 (a valid index) and as 1 (a valid divisor).
    """
    error: Exception | None = None
    for integer in (0, 1):
        total = 0

        def filled(t: torch.Tensor, integer: int = integer) -> torch.Tensor:
            nonlocal total
            extent = storage_extent(t.shape, t.stride())
            total += extent
            if total > largest:
                raise _TooLarge
            value = 0.5 if t.is_floating_point() or t.is_complex() else integer
            flat = torch.full((extent,), value, dtype=t.dtype, device="cpu")
            return flat.as_strided(t.shape, t.stride())

        try:
            filled_args = mapped(args, filled)
            filled_kwargs = {k: mapped(v, filled) for k, v in kwargs.items()}
            if "device" in filled_kwargs:
                filled_kwargs["device"] = torch.device("cpu")
            try_on_cpu(op, filled_args, filled_kwargs)
        except _TooLarge:
            raise
        except Exception as refused:
            if _says_nothing(op, refused):
                return None
            error = refused.with_traceback(None)
        else:
            return None
    return error


def _says_nothing(op: Any, refused: Exception) -> bool:
    """Whether the error comes from the made-up values or from a missing CPU kernel, not from the call."""
    return (
        "overrideable" in op._schema.name
        or op._schema.name in _VALUES_DECIDE
        or isinstance(refused, torch._C._LinAlgError)  # pyright: ignore[reportAttributeAccessIssue]
        or str(refused).startswith(_ABOUT_STRIDES)
        or (isinstance(refused, NotImplementedError) and str(refused).startswith("Could not run"))
    )


def check_overlap(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None:
    """Raise what the CPU kernel raises for tensors that share memory as these do.

    `key` stands for all of the call but the memory. Whether a kernel allows an input to be what it writes
    to, PyTorch decides for each operator.
    """
    positions: list[Any] = []
    sizes: dict[Any, int] = {}

    def note(t: torch.Tensor) -> None:
        buffer = buffer_of(t)
        sizes.setdefault(buffer, buffer.spec.numel * buffer.spec.dtype.itemsize)
        positions.append((list(sizes).index(buffer), spec_and_offset(t)))

    mapped([*args, kwargs], note)
    key = (key, tuple(positions))
    if key not in _refused:
        _refused[key] = _overlap_error(op, args, kwargs, sizes)
    if (text := _refused[key]) is not None:
        raise RuntimeError(text)


def _overlap_error(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: dict[Any, int]
) -> str | None:
    if sum(sizes.values()) > _LARGE:
        return None
    storages = {  # of zeros: a valid index
        buffer: torch.zeros(size, dtype=torch.uint8, device="cpu").untyped_storage()
        for buffer, size in sizes.items()
    }

    def alike(t: torch.Tensor) -> torch.Tensor:
        made = torch.empty(0, dtype=t.dtype, device="cpu")
        return made.set_(storages[buffer_of(t)], t.storage_offset(), t.shape, t.stride())  # type: ignore[arg-type]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try_on_cpu(op, mapped(args, alike), mapped(kwargs, alike))
    except Exception as error:
        return str(error) if str(error).startswith(_OVERLAP) else None
    return None
