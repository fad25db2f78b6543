"""Indices out of range: PyTorch's error, at the call where the host knows the values, else from the device.

Integers that came from the host, as those of a list or of a batch of tokens do, have a known range: mostly
it is inside and nothing more is done. The device checks the others (`run/deferred_checks.py`). An operator
that takes indices is a row of `CHECKS`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import ref

import torch

from torch_pjrt.caches import Cache
from torch_pjrt.graph.signature import OUTSIDE, Signature, Slot, intern
from torch_pjrt.graph.tape import Tape, Uploaded, current, number_on, push, state
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec
from torch_pjrt.observe.causes import because
from torch_pjrt.overloads import aten
from torch_pjrt.run.deferred_checks import DeferredChecks, Refusal, deferred_checks, forget
from torch_pjrt.session import session
from torch_pjrt.tensor.padding.padded import padded_view
from torch_pjrt.tensor.padding.recorded import size_tensor, with_rest
from torch_pjrt.tensor.recording.cpu_errors import check_small
from torch_pjrt.tensor.recording.schema import functional_form
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt
from torch_pjrt.tensor.storage.counts import is_data_dependent
from torch_pjrt.tensor.storage.transfer import host_view
from torch_pjrt.tensor.storage.view import value_of

INTEGERS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
_MAX = 2  # the mode of a bag
_MASKS = frozenset((torch.bool, torch.uint8))

Given = dict[str, Any]


class RangeCheck(NamedTuple):
    """A tensor of indices: each is at least `low` and less than `high`, or is `ignored`.

    refusal  makes the error from the index; where there is `along`, also from the size. It outlives the call
             and holds no tensor: that would be kept, and computed, for it.
    along    the tensor and its dim whose size `high` is, and `-low` if that is not 0.
    """

    tensor: torch.Tensor
    low: int
    high: int
    refusal: Refusal
    ignored: int | None = None
    along: tuple[torch.Tensor, int] | None = None

    @property
    def error(self) -> Callable[[int, int], Exception]:
        """Makes the error from an index and the size; it outlives the check."""
        refusal = self.refusal
        return (lambda index, _: refusal(index)) if self.along is None else refusal


# How PyTorch refuses an index, by operator.


def _dimension(dim: int, error: type[Exception], prefix: str = "") -> Refusal:
    return lambda index, size: error(
        f"{prefix}index {index} is out of bounds for dimension {dim} with size {size}"
    )


def _in_self(index: int, size: int) -> Exception:
    return IndexError("index out of range in self")


def _target(index: int, size: int) -> Exception:
    return IndexError(f"Target {index} is out of bounds.")


def _check_along(
    index: torch.Tensor,
    x: torch.Tensor,
    dim: int,
    refusal: Refusal,
    *,
    negative: bool = False,
    ignored: int | None = None,
) -> RangeCheck:
    size = x.shape[dim] if x.ndim else 1
    return RangeCheck(index, -size if negative else 0, size, refusal, ignored, (x, dim))


def _indices(given: Given) -> Iterator[RangeCheck]:
    """Those of `x[i, :, j]`: negative ones count from the end; a mask stands for as many dims as it has."""
    x = given["self"]
    dim = nth = 0
    for index in given["indices"]:
        if index is None:
            dim += 1
        elif index.dtype in _MASKS:
            dim, nth = dim + index.ndim, nth + index.ndim
        else:
            if dim < x.ndim:
                yield _check_along(index, x, dim, _dimension(nth, IndexError), negative=True)
            dim, nth = dim + 1, nth + 1


def _flat(given: Given) -> Iterator[RangeCheck]:
    size = given["self"].numel()

    def refusal(index: int) -> Exception:
        return IndexError(
            f"out of range: tried to access index {index} on a tensor of {size} elements."
        )

    yield RangeCheck(given["index"], -size, size, refusal)


def _along(
    refusal: Callable[[torch.Tensor, int], Refusal], *, negative: bool = False
) -> Callable[[Given], Iterator[RangeCheck]]:
    """Indices along a dim of `self`; `refusal` is made from `self` and the dim."""

    def checks(given: Given) -> Iterator[RangeCheck]:
        x, dim = given["self"], given["dim"]
        if -x.ndim <= dim < max(x.ndim, 1):
            dim %= max(x.ndim, 1)
            yield _check_along(given["index"], x, dim, refusal(x, dim), negative=negative)

    return checks


def _by_selecting(x: torch.Tensor, dim: int) -> Refusal:
    if dim != 1:
        return _in_self
    return lambda index, size: RuntimeError(
        f"INDICES element is out of DATA bounds, id={index} axis_dim={size}"
    )


def _by_adding(x: torch.Tensor, dim: int) -> Refusal:
    return _in_self if x.ndim < 2 else _dimension(dim, RuntimeError)


_scattered = _along(lambda x, dim: _dimension(dim, RuntimeError))
_filled = _along(lambda x, dim: _dimension(dim, IndexError), negative=True)


def _rows(given: Given) -> Iterator[RangeCheck]:
    if given["weight"].ndim:
        yield _check_along(given["indices"], given["weight"], 0, _in_self)


def _classes(given: Given) -> Iterator[RangeCheck]:
    x = given["self"]
    if x.ndim:
        dim = min(1, x.ndim - 1)
        yield _check_along(given["target"], x, dim, _target, ignored=given["ignore_index"])


NEGATIVE_CLASS = "Class values must be non-negative."


def _hot(given: Given) -> Iterator[RangeCheck]:
    """Without a number of classes, the kernel reads the largest."""

    def refusal(index: int) -> Exception:
        too_large = "Class values must be smaller than num_classes."
        return RuntimeError(NEGATIVE_CLASS if index < 0 else too_large)

    if (n_classes := given.get("num_classes", -1)) > 0:
        yield RangeCheck(given["self"], 0, n_classes, refusal)


def _position(indices: torch.Tensor | None, index: int) -> str:
    """Where an index is, if the host knows it: the device tells only what was found."""
    if indices is None or not isinstance(buffer_of(indices).value, Uploaded):
        return ""
    return f" {int((host_view(indices).flatten() == index).nonzero()[0])}"


def not_true(condition: str) -> str:
    """What PyTorch says where a condition of its C++ does not hold, and has no text."""
    return (
        f"Expected {condition} to be true, but got false.  (Could this error message be improved?  "
        "If so, please report an enhancement request to PyTorch.)"
    )


def _bags(given: Given) -> Iterator[RangeCheck]:
    """Rows of the table, and where each bag begins."""
    weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
    n, n_indices, mode, at = weight.shape[0], indices.shape[0], given.get("mode", 0), ref(indices)
    # The CPU's fast kernel has a text of its own; these, and a row that counts for nothing, it does not take.
    is_slow = mode == _MAX or weight.dtype == torch.float64 or given.get("padding_idx", -1) >= 0

    def no_row(index: int) -> Exception:
        if is_slow:
            return RuntimeError(
                "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be "
                f"{index}"
            )
        return RuntimeError(
            f"Index{_position(at(), index)} of input takes value {index} which is not in the "
            f"valid range [0, {n})"
        )

    def no_start(index: int) -> Exception:
        return RuntimeError(
            f"offsets[-1] can not be greater than input's length {n_indices} but got "
            f"offsets[-1] of {index}"
        )

    def late_start(index: int) -> Exception:
        return RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            f"position 0. However, got {index}"
        )

    def decreasing(_: int) -> Exception:
        return RuntimeError(not_true("i < index_size"))

    if indices.ndim == offsets.ndim == 1 and is_pjrt(offsets) and len(offsets):
        if mode != _MAX and len(offsets) > 1:
            lengths = offsets[1:] - offsets[:-1]
            yield RangeCheck(lengths, 0, torch.iinfo(offsets.dtype).max, decreasing)
        yield RangeCheck(offsets[:1], 0, 1, late_start)
        yield RangeCheck(offsets[-1:], 0, indices.shape[0] + 1, no_start)
    yield RangeCheck(indices, 0, n, no_row)


def _unpooled(n_dims: int) -> Callable[[Given], Iterator[RangeCheck]]:
    def checks(given: Given) -> Iterator[RangeCheck]:
        sizes = list(given["output_size"])
        if len(sizes) == n_dims:

            def refusal(index: int) -> Exception:
                of = "x".join(map(str, sizes))
                return RuntimeError(
                    f"Found an invalid max index: {index} (output volumes are of size {of})"
                )

            yield RangeCheck(given["indices"], 0, math.prod(sizes), refusal)

    return checks


def _margins(low: int, text: str) -> Callable[[Given], Iterator[RangeCheck]]:
    def checks(given: Given) -> Iterator[RangeCheck]:
        x = given["self"]
        if x.ndim:
            yield RangeCheck(given["target"], low, x.shape[-1], lambda _: RuntimeError(text))

    return checks


def _sorted(given: Given) -> Iterator[RangeCheck]:
    sorter = given.get("sorter")
    if sorter is not None and sorter.ndim:
        text = "torch.searchsorted(): sorter index out of range"
        yield RangeCheck(sorter, 0, sorter.shape[-1], lambda _: RuntimeError(text))


#   functional overload                     its checks
CHECKS: dict[Any, Callable[[Given], Iterator[RangeCheck]]] = {
    aten._embedding_bag.default: _bags,
    aten._embedding_bag_forward_only.default: _bags,
    aten.embedding.default: _rows,
    aten.gather.default: _scattered,
    aten.index.Tensor: _indices,
    aten.index_add.default: _along(_by_adding),
    aten.index_copy.default: _along(lambda x, dim: _dimension(dim, IndexError, "index_copy_(): ")),
    aten.index_fill.int_Scalar: _filled,
    aten.index_fill.int_Tensor: _filled,
    aten.index_put.default: _indices,
    aten.index_reduce.default: _along(lambda x, dim: _in_self),
    aten.index_select.default: _along(_by_selecting),
    aten.max_unpool2d.default: _unpooled(2),
    aten.max_unpool3d.default: _unpooled(3),
    aten.multi_margin_loss.default: _margins(0, "target out of range"),
    aten.multilabel_margin_loss_forward.default: _margins(
        -1, "argument #2 'target' is out of range"
    ),
    aten.nll_loss2d_forward.default: _classes,
    aten.nll_loss_forward.default: _classes,
    aten.one_hot.default: _hot,
    aten.put.default: _flat,
    aten.scatter.reduce: _scattered,
    aten.scatter.src: _scattered,
    aten.scatter.value: _scattered,
    aten.scatter.value_reduce: _scattered,
    aten.scatter_add.default: _scattered,
    aten.scatter_reduce.two: _scattered,
    aten.searchsorted.Scalar: _sorted,
    aten.searchsorted.Tensor: _sorted,
    aten.take.default: _flat,
}


def takes_indices(op: Any) -> bool:
    """Whether a functional overload takes indices that are checked.

    >>> takes_indices(aten.embedding.default), takes_indices(aten.sin.default)
    (True, False)
    """
    return op in CHECKS


def range_checks(op: Any, given: Given) -> Iterator[RangeCheck]:
    """What a call of a functional overload that takes indices has to check; its arguments by name.

    >>> weight, indices = torch.ones(4, 2, device="pjrt"), torch.tensor([3]).to("pjrt")
    >>> [check] = range_checks(aten.embedding.default, {"weight": weight, "indices": indices})
    >>> check.low, check.high
    (0, 4)
    """
    return CHECKS[op](given)


def checked(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of `op` with its indices checked, if it takes any."""
    functional = functional_form(op)
    checks_of = CHECKS.get(functional)
    if checks_of is None:
        return kernel
    names = [a.name for a in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        try:
            unknown = [check for check in checks_of(given) if not known_to_be_inside(check)]
        except (IndexError, RuntimeError):
            if not _is_masked(given):
                check_small(op, args, kwargs)  # another error comes first
            raise
        result = kernel(*args, **kwargs)
        for check in unknown:
            defer_check(check)
        return result

    return run


def _is_masked(given: Given) -> bool:
    """Whether there is a mask among the indices: made-up values say nothing of such a call."""
    indices = given.get("indices")
    return isinstance(indices, (list, tuple)) and any(
        index is not None and index.dtype in _MASKS for index in indices
    )


def known_to_be_inside(check: RangeCheck) -> bool:
    """Whether the host knows it, or there is nothing to know. Raises if it knows the contrary.

    It reads nothing, but for the index that an error names.

        >>> weight, indices = torch.ones(4, 2, device="pjrt"), torch.tensor([3]).to("pjrt")
        >>> [check] = range_checks(aten.embedding.default, {"weight": weight, "indices": indices})
        >>> known_to_be_inside(check)  # the indices were uploaded: the host knows the largest
        True
    """
    tensor = check.tensor
    if tensor.dtype not in INTEGERS or not is_pjrt(tensor) or not tensor.numel():
        return True
    buffer = buffer_of(tensor)
    value = None if is_data_dependent(buffer) else buffer.value
    if not isinstance(value, Uploaded) or value.spec.dtype != tensor.dtype:
        return False
    least, most = value.range
    outside = [i for i in (least, most) if not check.low <= i < check.high]
    if not outside:
        return True
    if tensor.numel() < value.spec.numel or all(i == check.ignored for i in outside):
        return False  # perhaps not in this part of the array; perhaps there are others
    with because("a check of indices"):
        host = host_view(tensor).flatten()
    is_outside = (host < check.low) | (host >= check.high)
    if check.ignored is not None:
        is_outside &= host != check.ignored
    if not is_outside.any():  # of a view that has some elements twice
        return False
    raise check.error(int(host[is_outside][0]), check.high)


class _Last(threading.local):
    """The checks of the tape that this thread records on."""

    checks: DeferredChecks | None = None


_last = session.own("the last deferred checks of a thread", _Last())
_signatures: Cache[Any, Signature] = Cache("checks of indices", most=4_096)


def defer_check(check: RangeCheck) -> None:
    """Let the device look for an index out of range; all checks of a tape make one result together.

    Sizes that only values decide are read there: the program serves all of them.
    """
    # What an operator is made of stays inside.
    if state.tape.nested and not state.tape.defers_checks:
        return
    defer_check_of(check, with_rest(check.tensor, max(check.low, 0)), _data_dependent_size(check))


def defer_check_of(check: RangeCheck, indices: torch.Tensor, size: torch.Tensor | None) -> None:
    """As `defer_check`, of `indices` whose padding is inside; with a `size` on the device, if given.

    >>> weight, indices = torch.ones(4, 2, device="pjrt"), torch.tensor([2, 3]).to("pjrt") * 2
    >>> [check] = range_checks(aten.embedding.default, {"weight": weight, "indices": indices})
    >>> known_to_be_inside(check)
    False
    >>> defer_check_of(check, indices, None)
    >>> torch.pjrt.synchronize()
    Traceback (most recent call last):
    IndexError: ...
    """
    value, of_size = value_of(indices), None if size is None else value_of(size)
    tape = current()
    before = _last.checks
    if before is not None and before.value.tape is not tape:
        before = None
    low, high = (check.low, check.high) if of_size is None else (-1 if check.low else 0, 1)
    limits = (low, high, check.ignored)
    what = number_on(tape, value), limits, None if of_size is None else number_on(tape, of_size)
    if before is not None and what in before.seen:
        return
    which = 1 + (len(before.refusals) if before is not None else 0)
    key = (value.spec, which, limits, of_size is None)
    signature = _signatures.get(key)
    if signature is None:
        spec = contiguous_spec(value.spec.shape, check.tensor.dtype)
        signature = _signatures[key] = _signature(
            spec, which, limits, is_first=before is None, has_size=of_size is not None
        )
    inputs = [value, None if before is None else before.value, of_size]
    found = push(signature, *[v for v in inputs if v is not None])
    if before is None:
        before = _last.checks = deferred_checks(found)
    before.value = found
    before.seen.add(what)
    before.refusals.append(_raised_later(check))


def _signature(
    spec: TensorSpec, which: int, limits: tuple[Any, ...], *, is_first: bool, has_size: bool
) -> Signature:
    out = contiguous_spec((3,), torch.int64)
    specs = (spec,) if is_first else (spec, out)
    args = (Slot(0), None if is_first else Slot(1), which, *limits)
    if not has_size:
        return intern(OUTSIDE, (*args, None), {}, specs, (out,))
    size = contiguous_spec((), torch.int64)
    return intern(OUTSIDE, (*args, Slot(len(specs))), {}, (*specs, size), (out,))


def deferred_checks_of(tape: Tape) -> DeferredChecks | None:
    """The deferred checks of this tape, for who makes a part of another tape of it; nobody else sees them.

    >>> with onto(Tape(nested=True)) as tape:
    ...     y = torch.ones(2, device="pjrt").sin()
    >>> deferred_checks_of(tape) is None  # nothing is looked up in it
    True
    """
    found = _last.checks
    if found is None or found.value.tape is not tape:
        return None
    _last.checks = None
    forget(found)
    return found


def _data_dependent_size(check: RangeCheck) -> torch.Tensor | None:
    """The size that bounds the indices, on the device, if only values decide it."""
    if check.along is None:
        return None
    x, dim = check.along
    view = padded_view(x) if is_pjrt(x) and is_data_dependent(buffer_of(x)) else None
    if view is None or view.dim != dim or not view.count.n:
        return None
    return size_tensor(view.count)


def _raised_later(check: RangeCheck) -> Refusal:
    error_of = check.error

    def later(index: int, size: int) -> Exception:
        error = error_of(index, size)
        note = "The device has found this while it ran: the call at fault came before this one."
        return type(error)(f"{error}\n  {note}")

    return later
