"""In which memory format an operator's results are, where PyTorch's meta functions do not say what CPU does.

A row of `FORMATS` gives the format of all results that have enough dims for it, one of `COLUMN_MAJOR`
the results that are matrices in LAPACK's order. How an array lies on the
device is XLA's affair: this is about the strides that PyTorch sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import _meta_registrations
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format

from torch_pjrt.graph.face import Face
from torch_pjrt.overloads import aten

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


def _of_first(faces: Sequence[Face]) -> Format:
    return suggest_memory_format(faces[0].meta())


def _of_convolution(faces: Sequence[Face]) -> Format:
    """Channels last where the input or the weight is so; not in three dims of float64."""
    for face in faces[:2]:
        found = suggest_memory_format(face.meta())
        if found is torch.channels_last_3d and face.dtype is torch.float64:
            continue
        if found is not torch.contiguous_format:
            return found
    return torch.contiguous_format


#   operator                                   the format of its results, from its tensors
FORMATS: dict[Any, Callable[[Sequence[Face]], Format]] = {
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
_CONTIGUOUS = frozenset((aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar))

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


def _widens_expanded(faces: Sequence[Face]) -> bool:
    """Whether PyTorch's meta function makes an expanded tensor dense, as it computes halves in float32."""
    return len(faces) > 1 and any(
        face.dtype in (torch.bfloat16, torch.float16) and not face.dense and 0 in face.strides
        for face in faces
    )


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
    if (places := COLUMN_MAJOR.get(op)) is not None:
        return tuple(r.mT.contiguous().mT if i in places else r for i, r in enumerate(results))
    if op in FIRST_AS_FIRST:
        first = torch.empty_like(results[0], memory_format=_of_first(faces))
        results = (first, *results[1:])
    if (kept := STATISTICS.get(op)) is not None:
        dtype = faces[0].dtype
        if all(face.dtype == dtype for face in faces):
            narrow = [r.to(dtype) for r in results[kept]]
            results = (*results[: kept.start], *narrow, *results[kept.stop :])
        return results
    if torch.Tag.pointwise in op.tags and _widens_expanded(faces):
        spread = [face.meta().expand(results.shape) for face in faces]
        strides = compute_elementwise_output_strides(*spread)
        return torch.empty_strided(results.shape, strides, dtype=results.dtype, device="meta")
    if op in _CONTIGUOUS:
        return results.contiguous()
    format_of = FORMATS.get(op)
    if format_of is None:
        return results
    memory_format = format_of(faces)
    if _DIMS.get(memory_format) != results.ndim:
        return results
    return torch.empty_like(results, memory_format=memory_format)
