"""Writes that PyTorch refuses because elements share memory, refused with PyTorch's errors.

The rules are those of PyTorch's `MemoryOverlap`: what is easy to see is refused, the rest is let through.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_pjrt.graph.tensor_spec import TensorSpec, storage_extent
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt, spec_and_offset

_SHARED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
    "memory location. Please clone() the tensor before performing the operation."
)


def refuse_internal_overlap(spec: TensorSpec) -> None:
    """Raise for a write to a tensor, an expanded one, whose own elements share memory."""
    shared = any(n > 1 and s == 0 for n, s in zip(spec.shape, spec.strides, strict=True))
    if shared and spec.numel:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single "
            "memory location. Please clone() the tensor before performing the operation."
        )


def refuse_partial_overlap(targets: Iterable[Any], inputs: Iterable[Any]) -> None:
    """Raise where an input shares some memory with a target but is not just the same view of it."""
    inputs = [x for x in inputs if is_pjrt(x)]
    for target in targets:
        if not is_pjrt(target):
            continue
        for x in inputs:
            if x is not target and _overlap_partially(target, x):
                raise RuntimeError(_SHARED)


def refuse_overlap(target: torch.Tensor, x: torch.Tensor) -> None:
    """Raise where an input shares some memory with a target, also as the same view of it."""
    if is_pjrt(x) and buffer_of(target) is buffer_of(x):
        a, b = spec_and_offset(target)[0], spec_and_offset(x)[0]
        if a.numel and b.numel and a.dense and b.dense:
            (start, end), (x_start, x_end) = span_of(target), span_of(x)
            if start < x_end and x_start < end:
                raise RuntimeError(_SHARED)


Span = tuple[int, int]


def span_of(t: torch.Tensor) -> Span:
    """From which byte of its storage to which one a tensor reaches."""
    spec, offset = spec_and_offset(t)
    end = storage_extent(spec.shape, spec.strides, offset)
    return offset * spec.dtype.itemsize, end * spec.dtype.itemsize


def same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors show the same elements of one buffer alike."""
    return (
        buffer_of(a) is buffer_of(b)
        and spec_and_offset(a) == spec_and_offset(b)
        and (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
    )


def _overlap_partially(a: torch.Tensor, b: torch.Tensor) -> bool:
    if buffer_of(a) is not buffer_of(b):
        return False
    a_spec, b_spec = spec_and_offset(a)[0], spec_and_offset(b)[0]
    if not (a_spec.numel and b_spec.numel and a_spec.dense and b_spec.dense):
        return False
    (a_start, a_end), (b_start, b_end) = span_of(a), span_of(b)
    if (a_start, a_end) == (b_start, b_end):
        return a_spec.strides != b_spec.strides
    return a_start < b_end and b_start < a_end


def share_memory(targets: Iterable[Any], inputs: Iterable[Any]) -> bool:
    """Whether an input, or an element of a list of them, is on the buffer of a target."""
    written = {buffer_of(t) for t in targets if is_pjrt(t)}
    for given in inputs:
        for x in given if isinstance(given, (list, tuple)) else (given,):
            if is_pjrt(x) and buffer_of(x) in written:
                return True
    return False
