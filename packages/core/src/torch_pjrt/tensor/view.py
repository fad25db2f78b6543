"""Reading and writing a tensor whose look differs from its buffer's: the two view nodes.

    pjrt.read(base)          the elements that (face, offset) selects from the base's storage
    pjrt.write(base, new)    the base with those elements replaced by `new`

Where the selection is a slice, the offset is a number of the call, as a learning rate is: `x[i]` is one
program whatever `i` is. `base` is the buffer's array and its own face says how it lies in the storage. How a
selection becomes slices, reshapes and transposes is decided when lowering (`lowering/window.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.graph.face import Face, contiguous_face, face_of, storage_extent
from torch_pjrt.graph.signature import READ, WRITE, InternalOp, NumberSlot, Signature, Slot, intern
from torch_pjrt.graph.tape import Value, current, origin_on, push
from torch_pjrt.lowering.window import slide_of
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.buffer import Buffer, CountedBuffer, buffer_of, look_of
from torch_pjrt.tensor.counts import COUNTED, is_counted, recent

_CONJ = aten._conj_physical.default
_NEG = aten.neg.default

_NOTHING: Any = None

# By the base's face, the view's and its offset: the signature, and the numbers of the call.
_Learned = dict[tuple[Face, Face, int], tuple[Signature, tuple[int, ...]]]
_reads: _Learned = {}
_writes: _Learned = {}


def look(tensor: torch.Tensor, buffer: Buffer) -> tuple[Value, Face]:
    """A tensor's content as a value of its own shape, and its face. Records a read if it is a view.

    A tensor whose size only the values decide has the face `COUNTED` here, and no value: kernels have no
    signature for that face and leave the call to `record.call`.
    """
    shape, strides, dtype = tensor.shape, tensor.stride(), tensor.dtype
    base = buffer.face
    if is_counted(buffer) or (
        recent.by_size and 0 in strides and recent.has_one_of(shape, strides)
    ):
        return _NOTHING, COUNTED
    offset = tensor.storage_offset()
    if not offset and strides == base.strides and shape == base.shape and dtype is base.dtype:
        return content(buffer), base
    face = face_of(shape, dtype, strides)
    return read(buffer, face, offset), face


def true_look(tensor: torch.Tensor, buffer: Buffer) -> tuple[Value, Face]:
    """As `look`, for a tensor of any kind of size: what is there is cut to the true size."""
    face, offset = look_of(tensor)
    if face is buffer.face and not offset:
        return content(buffer), face
    return read(buffer, face, offset), face


def read(buffer: Buffer, face: Face, offset: int) -> Value:
    """Record the read of a view."""
    if (buffer.face, face, offset) not in _reads:
        _check_inside(buffer, face, offset)
    return read_value(content(buffer), buffer.face, face, offset)


def read_value(base: Value, base_face: Face, face: Face, offset: int) -> Value:
    """Record the read of (`face`, `offset`) from a storage in which `base` lies as `base_face` says."""
    learned = _reads.get((base_face, face, offset))
    if learned is None:
        out = contiguous_face(face.shape, face.dtype)
        learned = _learn(READ, (Slot(0),), (base_face,), face, offset, out)
        _reads[base_face, face, offset] = learned
    signature, ints = learned
    return push(signature.outs[0], signature.number, base, ints=ints)


def _learn(
    op: InternalOp,
    slots: tuple[Slot, ...],
    faces: tuple[Face, ...],
    face: Face,
    offset: int,
    out: Face,
) -> tuple[Signature, tuple[int, ...]]:
    slide = slide_of(faces[0], face, offset)
    if slide is None:
        return intern(op, (*slots, face, offset), {}, faces, (out,)), ()
    args = (*slots, face, slide, NumberSlot(0, int))
    return intern(op, args, {}, faces, (out,), (int,)), (offset,)


def true_value(buffer: CountedBuffer) -> Value:
    """What a counted buffer holds, without the room past its elements."""
    face = face_of(buffer.face.shape, buffer.face.dtype, buffer.padded_face.strides)
    return read_value(buffer.padded, buffer.padded_face, face, 0)


def _check_inside(buffer: Buffer, face: Face, offset: int) -> None:
    """Raise for a view that reaches out of its storage: `resize_` has made that smaller since."""
    held = buffer.face.numel * buffer.face.dtype.itemsize
    needed = storage_extent(face.shape, face.strides, offset) * face.dtype.itemsize
    if needed > held:
        raise RuntimeError(
            f"The tensor's sizes {list(face.shape)}, strides {list(face.strides)} and offset {offset} "
            f"need a storage of {needed} bytes, but it was resized to {held}."
        )


def content(buffer: Buffer) -> Value:
    """The buffer's value; zeros where nothing was ever written."""
    value = buffer.value
    if value is None:
        shape = list(buffer.face.shape)
        out = contiguous_face(buffer.face.shape, buffer.face.dtype)
        zeros = aten.zeros.default
        signature = intern(zeros, (shape,), {"dtype": buffer.face.dtype}, (), (out,))
        value = buffer.value = push(out, signature.number)
    return value


def value_of(tensor: torch.Tensor) -> Value:
    """A tensor's content as a value of its own shape; lazy conjugation and negation applied."""
    buffer = buffer_of(tensor)
    value = true_look(tensor, buffer)[0] if buffer.viewed else content(buffer)
    return _resolved(tensor, value) if tensor.is_conj() or tensor.is_neg() else value


def value_and_face(tensor: torch.Tensor) -> tuple[Value, Face]:
    """As `value_of`, with what the tensor looks like; nothing and `COUNTED` where `look` says so."""
    buffer = buffer_of(tensor)
    value, face = look(tensor, buffer) if buffer.viewed else (content(buffer), buffer.face)
    if face is COUNTED:
        return value, face
    if tensor.is_conj() or tensor.is_neg():
        value = _resolved(tensor, value)
    return value, face


def _resolved(tensor: torch.Tensor, value: Value) -> Value:
    """The value with what the tensor's conj and neg bits ask for; each is its own inverse."""
    for bit, op in ((tensor.is_conj(), _CONJ), (tensor.is_neg(), _NEG)):
        if bit:
            face = contiguous_face(tensor.shape, tensor.dtype)
            signature = intern(op, (Slot(0),), {}, (face,), (face,))
            value = push(face, signature.number, value)
    return value


def resize_as(target: torch.Tensor, shape: Sequence[int], strides: Sequence[int] | None) -> None:
    """Give an `out=` another shape, with these strides or contiguous."""
    target.resize_(shape)
    if strides is not None and tuple(strides) != target.stride():
        target.as_strided_(shape, strides)


def store(tensor: torch.Tensor, value: Value) -> None:
    """Write `value`, of the tensor's own shape and dtype, into the tensor's place in its buffer."""
    value = _resolved(tensor, value)
    buffer = buffer_of(tensor)
    face, offset = look_of(tensor) if buffer.viewed else (buffer.face, 0)
    if face is buffer.face and not offset:
        old = buffer.value
        if old is not None:
            tape = current()
            origin = origin_on(tape, old)
            if value.tape is tape and value.number >= 0 and value.origin is None:
                value.origin = origin
        buffer.value = value  # arrays are immutable, so two buffers may share one
        if buffer.blank:
            buffer.blank = buffer.viewed = False
        return
    old = content(buffer)
    learned = _writes.get((buffer.face, face, offset))
    if learned is None:
        _check_inside(buffer, face, offset)
        new = contiguous_face(face.shape, face.dtype)
        out = contiguous_face(buffer.face.shape, buffer.face.dtype)
        learned = _learn(WRITE, (Slot(0), Slot(1)), (buffer.face, new), face, offset, out)
        _writes[buffer.face, face, offset] = learned
    signature, ints = learned
    written = push(signature.outs[0], signature.number, old, value, ints=ints)
    if written.tape is not None:
        written.origin = origin_on(written.tape, old)
    buffer.value = written
