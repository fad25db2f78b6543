"""Places out of range: PyTorch's error, at the call where the host knows the values, else from the device.

Integers that came from the host, as those of a list or of a batch of tokens do, have a known range: mostly
it is inside and nothing more is done. Others the device watches for (`run/watch.py`). An operator that
takes places is a row of `CHECKS`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from torch_pjrt.graph.face import contiguous_face
from torch_pjrt.graph.signature import Signature, Slot, intern
from torch_pjrt.graph.tape import Tape, Uploaded, current, number_on, push, state
from torch_pjrt.observe.causes import because
from torch_pjrt.overloads import aten
from torch_pjrt.run.watch import OUTSIDE, Refusal, Watch, forget, watched
from torch_pjrt.tensor.buffer import buffer_of, is_pjrt
from torch_pjrt.tensor.counted_run import with_rest
from torch_pjrt.tensor.counts import is_counted, recent
from torch_pjrt.tensor.schema import functional_of
from torch_pjrt.tensor.transfer import host_view
from torch_pjrt.tensor.trial import check_small
from torch_pjrt.tensor.view import value_of

INTEGERS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
_MAX = 2  # the mode of a bag
_MASKS = frozenset((torch.bool, torch.uint8))

Given = dict[str, Any]


class Places(NamedTuple):
    """A tensor of places: each is at least `low` and less than `high`, or is `ignored`."""

    tensor: torch.Tensor
    low: int
    high: int
    refusal: Refusal
    ignored: int | None = None


# How PyTorch refuses a place, by operator.


def _dimension(dim: int, size: int, error: type[Exception], prefix: str = "") -> Refusal:
    return lambda place: error(
        f"{prefix}index {place} is out of bounds for dimension {dim} with size {size}"
    )


def _in_self(place: int) -> Exception:
    return IndexError("index out of range in self")


def _target(place: int) -> Exception:
    return IndexError(f"Target {place} is out of bounds.")


def _indices(given: Given) -> Iterator[Places]:
    """Those of `x[i, :, j]`: negative ones count from the end; a mask stands for as many dims as it has."""
    shape = given["self"].shape
    dim = nth = 0
    for index in given["indices"]:
        if index is None:
            dim += 1
        elif index.dtype in _MASKS:
            dim, nth = dim + index.ndim, nth + index.ndim
        else:
            if dim < len(shape):
                size = shape[dim]
                yield Places(index, -size, size, _dimension(nth, size, IndexError))
            dim, nth = dim + 1, nth + 1


def _flat(given: Given) -> Iterator[Places]:
    size = given["self"].numel()

    def refusal(place: int) -> Exception:
        return IndexError(
            f"out of range: tried to access index {place} on a tensor of {size} elements."
        )

    yield Places(given["index"], -size, size, refusal)


def _along(
    refusal: Callable[[torch.Tensor, int, int], Refusal], *, negative: bool = False
) -> Callable[[Given], Iterator[Places]]:
    """Places along a dim of `self`; `refusal` is made from `self`, the dim and its size."""

    def places(given: Given) -> Iterator[Places]:
        x, dim = given["self"], given["dim"]
        if -x.ndim <= dim < max(x.ndim, 1):
            dim %= max(x.ndim, 1)
            size = x.shape[dim] if x.ndim else 1
            yield Places(given["index"], -size if negative else 0, size, refusal(x, dim, size))

    return places


def _by_selecting(x: torch.Tensor, dim: int, size: int) -> Refusal:
    if dim != 1:
        return _in_self
    return lambda place: RuntimeError(
        f"INDICES element is out of DATA bounds, id={place} axis_dim={size}"
    )


def _by_adding(x: torch.Tensor, dim: int, size: int) -> Refusal:
    return _in_self if x.ndim < 2 else _dimension(dim, size, RuntimeError)


_scattered = _along(lambda x, dim, size: _dimension(dim, size, RuntimeError))


def _rows(given: Given) -> Iterator[Places]:
    if given["weight"].ndim:
        yield Places(given["indices"], 0, given["weight"].shape[0], _in_self)


def _classes(given: Given) -> Iterator[Places]:
    x = given["self"]
    if x.ndim:
        size = x.shape[min(1, x.ndim - 1)]
        yield Places(given["target"], 0, size, _target, given["ignore_index"])


def _position(places: torch.Tensor, place: int) -> str:
    """Where a place is, if the host knows it: the device tells only what was found."""
    if not isinstance(buffer_of(places).value, Uploaded):
        return ""
    return f" {int((host_view(places).flatten() == place).nonzero()[0])}"


def _bags(given: Given) -> Iterator[Places]:
    """Rows of the table, and where each bag begins."""
    weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
    n = weight.shape[0]

    def no_row(place: int) -> Exception:
        if given.get("mode", 0) == _MAX:
            return RuntimeError(
                "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be "
                f"{place}"
            )
        return RuntimeError(
            f"Index{_position(indices, place)} of input takes value {place} which is not in the "
            f"valid range [0, {n})"
        )

    def no_start(place: int) -> Exception:
        return RuntimeError(
            f"offsets[-1] can not be greater than input's length {indices.shape[0]} but got "
            f"offsets[-1] of {place}"
        )

    def late_start(place: int) -> Exception:
        return RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            f"position 0. However, got {place}"
        )

    if indices.ndim == 1 and is_pjrt(offsets) and len(offsets):
        yield Places(offsets[:1], 0, 1, late_start)
        yield Places(offsets[-1:], 0, indices.shape[0] + 1, no_start)
    yield Places(indices, 0, n, no_row)


def _unpooled(n_dims: int) -> Callable[[Given], Iterator[Places]]:
    def places(given: Given) -> Iterator[Places]:
        sizes = list(given["output_size"])
        if len(sizes) == n_dims:

            def refusal(place: int) -> Exception:
                of = "x".join(map(str, sizes))
                return RuntimeError(
                    f"Found an invalid max index: {place} (output volumes are of size {of})"
                )

            yield Places(given["indices"], 0, math.prod(sizes), refusal)

    return places


def _margins(low: int, text: str) -> Callable[[Given], Iterator[Places]]:
    def places(given: Given) -> Iterator[Places]:
        x = given["self"]
        if x.ndim:
            yield Places(given["target"], low, x.shape[-1], lambda _: RuntimeError(text))

    return places


def _sorted(given: Given) -> Iterator[Places]:
    sorter = given.get("sorter")
    if sorter is not None and sorter.ndim:
        text = "torch.searchsorted(): sorter index out of range"
        yield Places(sorter, 0, sorter.shape[-1], lambda _: RuntimeError(text))


#   functional overload                     its places
CHECKS: dict[Any, Callable[[Given], Iterator[Places]]] = {
    aten._embedding_bag.default: _bags,
    aten._embedding_bag_forward_only.default: _bags,
    aten.embedding.default: _rows,
    aten.gather.default: _scattered,
    aten.index.Tensor: _indices,
    aten.index_add.default: _along(_by_adding),
    aten.index_copy.default: _along(
        lambda x, dim, size: _dimension(dim, size, IndexError, "index_copy_(): ")
    ),
    aten.index_fill.int_Scalar: _along(
        lambda x, dim, size: _dimension(dim, size, IndexError), negative=True
    ),
    aten.index_fill.int_Tensor: _along(
        lambda x, dim, size: _dimension(dim, size, IndexError), negative=True
    ),
    aten.index_put.default: _indices,
    aten.index_reduce.default: _along(lambda x, dim, size: _in_self),
    aten.index_select.default: _along(_by_selecting),
    aten.max_unpool2d.default: _unpooled(2),
    aten.max_unpool3d.default: _unpooled(3),
    aten.multi_margin_loss.default: _margins(0, "target out of range"),
    aten.multilabel_margin_loss_forward.default: _margins(
        -1, "argument #2 'target' is out of range"
    ),
    aten.nll_loss2d_forward.default: _classes,
    aten.nll_loss_forward.default: _classes,
    aten.put.default: _flat,
    aten.scatter.reduce: _scattered,
    aten.scatter.src: _scattered,
    aten.scatter.value: _scattered,
    aten.scatter.value_reduce: _scattered,
    aten.scatter_add.default: _scattered,
    aten.scatter_reduce.two: _scattered,
    aten.searchsorted.Tensor: _sorted,
    aten.take.default: _flat,
}


def checked(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of `op` with its places checked, if it takes any."""
    functional = functional_of(op) if op._schema.is_mutable else op
    places_of = CHECKS.get(functional)
    if places_of is None:
        return kernel
    names = [a.name for a in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        try:
            unknown = [
                places
                for places in places_of(given)
                if not known_to_be_inside(places) and not _is_counted(given, places.high)
            ]
        except (IndexError, RuntimeError):
            if not _is_masked(given):
                check_small(op, args, kwargs)  # another error comes first
            raise
        result = kernel(*args, **kwargs)
        for places in unknown:
            watch(places)
        return result

    return run


def _is_masked(given: Given) -> bool:
    """Whether there is a mask among the indices: made-up values say nothing of such a call."""
    indices = given.get("indices")
    return isinstance(indices, (list, tuple)) and any(
        index is not None and index.dtype in _MASKS for index in indices
    )


def _is_counted(given: Given, high: int) -> bool:
    """Whether the bound is a size that only values decide: watching for it takes a program a count."""
    x = given.get("self")
    return is_pjrt(x) and is_counted(buffer_of(x)) and high in recent.by_size


def known_to_be_inside(places: Places) -> bool:
    """Whether the host knows it, or there is nothing to know. Raises if it knows the contrary."""
    tensor = places.tensor
    if tensor.dtype not in INTEGERS or not is_pjrt(tensor) or not tensor.numel():
        return True
    buffer = buffer_of(tensor)
    value = None if is_counted(buffer) else buffer.value
    if not isinstance(value, Uploaded) or value.face.dtype != tensor.dtype:
        return False
    least, most = value.range
    if places.low <= least and most < places.high:
        return True
    with because("a check of places"):
        host = host_view(tensor).flatten()
    outside = (host < places.low) | (host >= places.high)
    if places.ignored is not None:
        outside &= host != places.ignored
    if outside.any():
        raise places.refusal(int(host[outside][0]))
    return True


class _Last(threading.local):
    """The watch of the tape that this thread records on."""

    watch: Watch | None = None


_last = _Last()
_signatures: dict[Any, Signature] = {}


def watch(places: Places) -> None:
    """Let the device look for a place outside; all watches of a tape make one result together."""
    if state.tape.nested and not state.tape.watches:  # what an operator is made of stays inside
        return
    value = value_of(_with_places_past_the_count(places))
    tape = current()
    before = _last.watch
    if before is not None and before.value.tape is not tape:
        before = None
    number = number_on(tape, value)
    limits = (places.low, places.high, places.ignored)
    if before is not None and (number, limits) in before.seen:
        return
    which = 1 + (len(before.refusals) if before is not None else 0)
    key = (value.face, which, limits)
    signature = _signatures.get(key)
    if signature is None:
        out = contiguous_face((2,), torch.int64)
        face = contiguous_face(value.face.shape, places.tensor.dtype)
        faces = (face, out) if before is not None else (face,)
        args = (Slot(0), Slot(1) if before is not None else None, which, *limits)
        signature = _signatures[key] = intern(OUTSIDE, args, {}, faces, (out,))
    inputs = [value] if before is None else [value, before.value]
    found = push(signature.outs[0], signature.number, *inputs)
    if before is None:
        before = _last.watch = watched(found)
    before.value = found
    before.seen.add((number, limits))
    before.refusals.append(_told_later(places.refusal))


def watch_of(tape: Tape) -> Watch | None:
    """What is watched on this tape, for who makes a part of another tape of it; nobody else looks at it."""
    found = _last.watch
    if found is None or found.value.tape is not tape:
        return None
    _last.watch = None
    forget(found)
    return found


def _with_places_past_the_count(places: Places) -> torch.Tensor:
    """The tensor of places; one that is counted with its room, and an innocent place there."""
    if not is_counted(buffer_of(places.tensor)):
        return places.tensor
    return with_rest(places.tensor, max(places.low, 0))


def _told_later(refusal: Refusal) -> Refusal:
    def tell(place: int) -> Exception:
        error = refusal(place)
        note = "The device has found this while it ran: the call at fault came before this one."
        return type(error)(f"{error}\n  {note}")

    return tell
