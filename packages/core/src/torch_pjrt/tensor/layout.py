"""In which memory format an operator's results are, where PyTorch's meta functions do not say what CPU does.

A row of `FORMATS` gives the format of all results that have enough dims for it, one of `COLUMN_MAJOR`
the results that are matrices in LAPACK's order. How an array lies on the
device is XLA's affair: this is about the strides that PyTorch sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import _meta_registrations
from torch._prims_common import suggest_memory_format

from torch_pjrt.graph.face import Face, contiguous_face
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.iterated import iterated_strides

Format = torch.memory_format

_DIMS = {torch.channels_last: 4, torch.channels_last_3d: 5}


@contextmanager
def meta_as_cpu(op: Any) -> Iterator[None]:
    """Within it, PyTorch's meta functions answer as for CPU where devices differ, not as for CUDA."""
    if op in _AS_ON_CUDA:
        yield
        return
    hint = _meta_registrations.device_hint
    _meta_registrations.device_hint = lambda tensor: "cpu"
    try:
        yield
    finally:
        _meta_registrations.device_hint = hint


def _of_first(given: Mapping[str, Any], faces: Sequence[Face]) -> Format:
    return suggest_memory_format(faces[0].meta())


# From so many elements on the CPU hands also a batch of one volume to its fast kernel.
_MANY_ELEMENTS = 20480


def _is_slow_on_cpu(given: Mapping[str, Any], face: Face, weight: Face) -> bool:
    """Whether a convolution of volumes has the CPU's plain kernel, which knows no channels last."""
    if face.dtype is torch.float64:
        return True
    *_, height, width = weight.shape
    return (
        face.dtype is torch.float32
        and face.shape[0] <= 1
        and given["groups"] == 1
        and not (height > 3 and width > 3)
        and face.numel <= _MANY_ELEMENTS
    )


def _of_convolution(given: Mapping[str, Any], faces: Sequence[Face]) -> Format:
    """Channels last where the input or the weight is so, but for what the CPU's plain kernel computes."""
    for face in faces[:2]:
        found = suggest_memory_format(face.meta())
        if found is torch.channels_last_3d and _is_slow_on_cpu(given, faces[0], faces[1]):
            continue
        if found is not torch.contiguous_format:
            return found
    return torch.contiguous_format


def _of_convolution_1d(faces: Sequence[Face], result: torch.Tensor) -> torch.Tensor:
    """That of images of one row: the CPU makes the input contiguous first."""
    images = (faces[0].meta().contiguous().unsqueeze(2), faces[1].meta().unsqueeze(2))
    formats = [suggest_memory_format(image) for image in images]
    memory_format = formats[formats[0] is torch.contiguous_format]
    return torch.empty_like(result.unsqueeze(2), memory_format=memory_format).squeeze(2)


#   operator                                   the format of its results, from its arguments and tensors
FORMATS: dict[Any, Callable[[Mapping[str, Any], Sequence[Face]], Format]] = {
    aten.channel_shuffle.default: _of_first,
    aten.convolution.default: _of_convolution,
    aten.convolution_overrideable.default: _of_convolution,
    aten.reflection_pad2d.default: _of_first,
    aten.reflection_pad3d.default: _of_first,
    aten.max_unpool2d.default: _of_first,
    aten.roll.default: _of_first,
}

# Of their results the first is in the format of the first tensor: contiguous where that has none.
FIRST_AS_FIRST = frozenset(
    (
        aten._batch_norm_with_update_functional.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
    )
)

# Which of the results of LAPACK's routines are matrices in column-major order.
COLUMN_MAJOR: dict[Any, tuple[int, ...]] = {
    aten.geqrf.default: (0,),
    aten.linalg_lstsq.default: (0,),
}

# Their results are transposed where the CPU transforms another dim first; an `out=` that has to grow is not.
CONTIGUOUS_OUT = frozenset((aten._fft_c2c.default, aten._fft_c2r.default, aten._fft_r2c.default))

# An `out=` of another shape that has as many elements keeps its shape, and gets them in its order.
KEEPS_SHAPE_OF_OUT = frozenset(
    (
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        *(
            getattr(packet, name)
            for packet in (aten.linspace, aten.logspace)
            for name in ("default", "Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor")
        ),
        aten.range.default,
        aten.range.step,
    )
)

# Their results are contiguous whatever their tensors' strides, which the meta functions keep.
_CONTIGUOUS = frozenset(
    (
        aten.isin.Tensor_Scalar,
        aten.isin.Tensor_Tensor,
        aten.nll_loss2d_forward.default,
        aten.normal.Tensor_Tensor,
        aten.normal.Tensor_float,
        aten.normal.float_Tensor,
    )
)

# Their results lie as those of pointwise operators, which the meta functions make contiguous.
_POINTWISE = frozenset((aten.native_dropout_backward.default,))
# Pointwise by their tags; on the CPU a copy of the input is filled.
_FILLS = frozenset((aten.masked_fill.Scalar, aten.masked_fill.Tensor))

# Which tensors the CPU's iterator sees, where those are not the operator's own: another order, or one of
# them is a result of its own, which is contiguous.
_ITERATES_OVER: dict[Any, Callable[[Sequence[Face]], Sequence[Face]]] = {
    aten.ldexp.Tensor: lambda faces: (
        (faces[0], contiguous_face(faces[1].shape, faces[1].dtype))
        if faces[1].dtype == _computed_in(faces)
        else faces
    ),
    aten.threshold_backward.default: lambda faces: (faces[1], faces[0]),
}

# Their last results are notes for their own backward, of shapes that the rules share with CUDA.
_AS_ON_CUDA = frozenset((aten._embedding_bag.default, aten._embedding_bag_forward_only.default))


# Which of their results are statistics kept for the backward: in 16 bits if all tensors are.
STATISTICS: dict[Any, slice] = {
    aten._batch_norm_with_update_functional.default: slice(1, 3),
    aten._native_batch_norm_legit.no_stats: slice(1, 3),
    aten._native_batch_norm_legit_functional.default: slice(1, 3),
    aten.native_group_norm.default: slice(1, 3),
    aten.native_layer_norm.default: slice(1, 3),
}


def _is_iterated(op: Any, faces: Sequence[Face], results: Any) -> bool:
    """Whether tensors that look differently are computed element by element."""
    if not isinstance(results, torch.Tensor) or not results.numel():
        return False
    if op in _POINTWISE:
        return True
    if torch.Tag.pointwise not in op.tags or op in _FILLS:
        return False
    return len({(face.shape, face.strides, face.dtype) for face in faces}) > 1


def _computed_in(faces: Sequence[Face]) -> torch.dtype:
    return reduce(torch.promote_types, [face.dtype for face in faces])


def _of_attention_backward(given: Mapping[str, Any], faces: Sequence[Face], results: Any) -> Any:
    """Heads lie inside positions, by the CPU's flash kernel; its composition transposes keys."""
    _, query, key, value = faces[:4]
    gradients, rest = results[:3], results[3:]
    wants_bias = given["attn_bias"] is not None and given["grad_input_mask"][3]
    if given["dropout_p"] or wants_bias or query.shape[-1] != value.shape[-1]:
        of_query, of_key, of_value = (g.contiguous() for g in gradients)
        if query.shape[-3] == key.shape[-3]:
            of_key = of_key.mT.contiguous().mT
        return of_query, of_key, of_value, *rest
    return *[g.transpose(-3, -2).contiguous().transpose(-3, -2) for g in gradients], *rest


def _of_attention(given: Mapping[str, Any], faces: Sequence[Face], results: Any) -> Any:
    """Contiguous where the CPU composes it: with dropout, and for rows with gaps."""
    if not given["dropout_p"] and all(face.strides[-1] == 1 for face in faces[:3]):
        return results
    return results[0].contiguous(), *results[1:]


def laid_out(op: Any, given: Mapping[str, Any], faces: Sequence[Face], results: Any) -> Any:
    """The meta tensors that an operator gives, in the format in which the CPU kernel gives them."""
    if op is aten._scaled_dot_product_fused_attention_overrideable.default:
        return _of_attention(given, faces, results)
    if op is aten._scaled_dot_product_fused_attention_overrideable_backward.default:
        return _of_attention_backward(given, faces, results)
    if op is aten.linalg_lstsq.default and len(faces[1].shape) < len(faces[0].shape):
        return results  # one right-hand side for each matrix
    if (places := COLUMN_MAJOR.get(op)) is not None:
        return tuple(r.mT.contiguous().mT if i in places else r for i, r in enumerate(results))
    if op in FIRST_AS_FIRST:
        first = torch.empty_like(results[0], memory_format=_of_first(given, faces))
        results = (first, *results[1:])
    if (kept := STATISTICS.get(op)) is not None:
        dtype = faces[0].dtype
        if all(face.dtype == dtype for face in faces):
            narrow = [r.to(dtype) for r in results[kept]]
            results = (*results[: kept.start], *narrow, *results[kept.stop :])
        return results
    if _is_iterated(op, faces, results):
        faces = _ITERATES_OVER.get(op, lambda faces: faces)(faces)
        strides = iterated_strides(results.shape, faces, _computed_in(faces))
        return torch.empty_strided(results.shape, strides, dtype=results.dtype, device="meta")
    if op in _CONTIGUOUS:
        if isinstance(results, torch.Tensor):
            return results.contiguous()
        return tuple(r.contiguous() for r in results)
    format_of = FORMATS.get(op)
    if format_of is None:
        return results
    if format_of is _of_convolution and results.ndim == 3:
        return _of_convolution_1d(faces, results)
    memory_format = format_of(given, faces)
    if _DIMS.get(memory_format) != results.ndim:
        return results
    return torch.empty_like(results, memory_format=memory_format)
