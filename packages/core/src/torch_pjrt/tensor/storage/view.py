"""Reading and writing a tensor whose look differs from its buffer's: the two view nodes.

    pjrt.read(base)          the elements that (spec, offset) selects from the base's storage
    pjrt.write(base, new)    the base with those elements replaced by `new`

Where the selection is a slice, the offset is a number of the call, as a learning rate is: `x[i]` is one
program whatever `i` is. `base` is the buffer's array and its own spec says how it lies in the storage. How a
selection becomes slices, reshapes and transposes is decided when lowering (`lowering/window.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.caches import Cache
from torch_pjrt.graph.signature import READ, WRITE, InternalOp, NumberSlot, Signature, Slot, intern
from torch_pjrt.graph.tape import Value, current, origin_on, push
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of, storage_extent
from torch_pjrt.lowering.window import slide_of
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.storage.buffer import Buffer, buffer_of, spec_and_offset
from torch_pjrt.tensor.storage.counts import DATA_DEPENDENT, is_data_dependent, recent

_CONJ = aten._conj_physical.default
_NEG = aten.neg.default

_NOTHING: Any = None

# By the base's spec, the view's and its offset: the signature, and the numbers of the call.
_Learned = Cache[tuple[TensorSpec, TensorSpec, int], tuple[Signature, tuple[int, ...]]]
_reads: _Learned = Cache("reads of views", most=65_536)
_writes: _Learned = Cache("writes of views", most=65_536)


def look(tensor: torch.Tensor, buffer: Buffer) -> tuple[Value, TensorSpec]:
    """A tensor's content as a value of its own shape, and its spec. Records a read if it is a view.

    A tensor whose size only the values decide has the spec `DATA_DEPENDENT` here, and no value: kernels have
    no signature for that spec and leave the call to `record.call`.
    """
    shape, strides, dtype = tensor.shape, tensor.stride(), tensor.dtype
    base = buffer.spec
    if is_data_dependent(buffer) or (
        recent.by_size and 0 in strides and recent.has_one_of(shape, strides)
    ):
        return _NOTHING, DATA_DEPENDENT
    offset = tensor.storage_offset()
    if not offset and strides == base.strides and shape == base.shape and dtype is base.dtype:
        return content(buffer), base
    spec = spec_of(shape, dtype, strides)
    return read(buffer, spec, offset), spec  # pyright: ignore[reportArgumentType]


def true_look(tensor: torch.Tensor, buffer: Buffer) -> tuple[Value, TensorSpec]:
    """As `look`, for a tensor of any kind of size: what is there is cut to the true size."""
    spec, offset = spec_and_offset(tensor)
    if spec is buffer.spec and not offset:
        return content(buffer), spec
    return read(buffer, spec, offset), spec


def read(buffer: Buffer, spec: TensorSpec, offset: int) -> Value:
    """Record the read of a view."""
    if (buffer.spec, spec, offset) not in _reads:
        _check_inside(buffer, spec, offset)
    return read_value(content(buffer), buffer.spec, spec, offset)


def read_value(base: Value, base_spec: TensorSpec, spec: TensorSpec, offset: int) -> Value:
    """Record the read of (`spec`, `offset`) from a storage in which `base` lies as `base_spec` says."""
    learned = _reads.get((base_spec, spec, offset))
    if learned is None:
        out = contiguous_spec(spec.shape, spec.dtype)
        learned = _learn(READ, (Slot(0),), (base_spec,), spec, offset, out)
        _reads[base_spec, spec, offset] = learned
    signature, ints = learned
    return push(signature, base, ints=ints)


def _learn(
    op: InternalOp,
    slots: tuple[Slot, ...],
    specs: tuple[TensorSpec, ...],
    spec: TensorSpec,
    offset: int,
    out: TensorSpec,
) -> tuple[Signature, tuple[int, ...]]:
    slide = slide_of(specs[0], spec, offset)
    if slide is None:
        return intern(op, (*slots, spec, offset), {}, specs, (out,)), ()
    args = (*slots, spec, slide, NumberSlot(0, int))
    return intern(op, args, {}, specs, (out,), (int,)), (offset,)


def _check_inside(buffer: Buffer, spec: TensorSpec, offset: int) -> None:
    """Raise for a view that reaches out of its storage: `resize_` has made that smaller since."""
    held = buffer.spec.numel * buffer.spec.dtype.itemsize
    needed = storage_extent(spec.shape, spec.strides, offset) * spec.dtype.itemsize
    if needed > held:
        raise RuntimeError(
            f"The tensor's sizes {list(spec.shape)}, strides {list(spec.strides)} and offset {offset} "
            f"need a storage of {needed} bytes, but it was resized to {held}."
        )


def content(buffer: Buffer) -> Value:
    """The buffer's value; zeros where nothing was ever written.

    >>> content(buffer_of(torch.ones(2, 3, device="pjrt").T)).spec.shape
    (2, 3)
    """
    value = buffer.value
    if value is None:
        shape = list(buffer.spec.shape)
        out = contiguous_spec(buffer.spec.shape, buffer.spec.dtype)
        zeros = aten.zeros.default
        signature = intern(zeros, (shape,), {"dtype": buffer.spec.dtype}, (), (out,))
        value = buffer.value = push(signature)
    return value


def value_of(tensor: torch.Tensor) -> Value:
    """A tensor's content as a value of its own shape; lazy conjugation and negation applied.

    >>> value_of(torch.ones(2, 3, device="pjrt").T).spec.shape
    (3, 2)
    """
    buffer = buffer_of(tensor)
    value = true_look(tensor, buffer)[0] if buffer.viewed else content(buffer)
    return _resolved(tensor, value) if tensor.is_conj() or tensor.is_neg() else value


def value_and_spec(tensor: torch.Tensor) -> tuple[Value, TensorSpec]:
    """As `value_of`, with what the tensor looks like; nothing and `DATA_DEPENDENT` where `look` says so."""
    buffer = buffer_of(tensor)
    value, spec = look(tensor, buffer) if buffer.viewed else (content(buffer), buffer.spec)
    if spec is DATA_DEPENDENT:
        return value, spec
    if tensor.is_conj() or tensor.is_neg():
        value = _resolved(tensor, value)
    return value, spec


def _resolved(tensor: torch.Tensor, value: Value) -> Value:
    """The value with what the tensor's conj and neg bits ask for; each is its own inverse."""
    for bit, op in ((tensor.is_conj(), _CONJ), (tensor.is_neg(), _NEG)):
        if bit:
            spec = contiguous_spec(tensor.shape, tensor.dtype)
            signature = intern(op, (Slot(0),), {}, (spec,), (spec,))
            value = push(signature, value)
    return value


def warn_of_elements(out: torch.Tensor, shape: Sequence[int]) -> None:
    """Warn, as the CPU does at each call, if an `out=` that is to be resized has elements."""
    like = torch.empty(out.shape, device="meta")
    aten._resize_output_.default(like, shape, like.device)


def resize_as(target: torch.Tensor, shape: Sequence[int], strides: Sequence[int] | None) -> None:
    """Give an `out=` another shape, with these strides or contiguous."""
    target.resize_(shape)
    if strides is not None and tuple(strides) != target.stride():
        target.as_strided_(shape, strides)


def store(tensor: torch.Tensor, value: Value) -> None:
    """Write `value`, of the tensor's own shape and dtype, into the tensor's place in its buffer.

    >>> x = torch.zeros(3, device="pjrt")
    >>> store(x, upload(torch.ones(3)))
    >>> x
    tensor([1., 1., 1.], device='pjrt:0')
    """
    value = _resolved(tensor, value)
    buffer = buffer_of(tensor)
    spec, offset = spec_and_offset(tensor) if buffer.viewed else (buffer.spec, 0)
    if spec is buffer.spec and not offset:
        old = buffer.value
        if (
            old is not None and value.array is None
        ):  # else the old one would be an input that nobody reads
            tape = current()
            origin = origin_on(tape, old)
            if value.tape is tape and value.number >= 0 and value.origin is None:
                value.origin = origin
        buffer.value = value  # arrays are immutable, so two buffers may share one
        if buffer.blank:
            buffer.blank = buffer.viewed = False
        return
    old = content(buffer)
    learned = _writes.get((buffer.spec, spec, offset))
    if learned is None:
        _check_inside(buffer, spec, offset)
        new = contiguous_spec(spec.shape, spec.dtype)
        out = contiguous_spec(buffer.spec.shape, buffer.spec.dtype)
        learned = _learn(WRITE, (Slot(0), Slot(1)), (buffer.spec, new), spec, offset, out)
        _writes[buffer.spec, spec, offset] = learned
    signature, ints = learned
    written = push(signature, old, value, ints=ints)
    if written.tape is not None:
        written.origin = origin_on(written.tape, old)
    buffer.value = written
