"""In which memory format an operator's results are, where PyTorch's meta functions do not say what CPU does.

A row of `FORMATS` gives the format of all results that have enough dims for it, one of `COLUMN_MAJOR`
the results that are matrices in LAPACK's order. How an array lies on the
device is XLA's affair: this is about the strides that PyTorch sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import Any

import torch
from torch import _meta_registrations
from torch._prims_common import suggest_memory_format, wrappers

from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec
from torch_pjrt.overloads import aten
from torch_pjrt.stand_ins import StandIn
from torch_pjrt.tensor.recording.tensor_iterator import iterated_strides

Format = torch.memory_format

_DIMS = {torch.channels_last: 4, torch.channels_last_3d: 5}


_hint = StandIn(_meta_registrations, "device_hint", lambda original, tensor: "cpu")
# An `out=` of another shape: the meta functions in Python warn in words of their own, and C++ warns later.
_quiet = StandIn(
    wrappers, "_resize_output_check", lambda original, out, shape: out.shape != tuple(shape)
)


@contextmanager
def meta_as_cpu(op: Any) -> Iterator[None]:
    """Within it, PyTorch's meta functions answer as for CPU where devices differ, not as for CUDA.

    They do not warn of an `out=` that is resized.
    """
    with _quiet.in_force(), nullcontext() if op in _AS_ON_CUDA else _hint.in_force():
        yield


def _of_first(given: Mapping[str, Any], specs: Sequence[TensorSpec]) -> Format:
    return suggest_memory_format(specs[0].meta())


# From so many elements on the CPU hands also a batch of one volume to its fast kernel.
_MANY_ELEMENTS = 20480


def _is_slow_on_cpu(given: Mapping[str, Any], spec: TensorSpec, weight: TensorSpec) -> bool:
    """Whether a convolution of volumes has the CPU's plain kernel, which knows no channels last."""
    if spec.dtype is torch.float64:
        return True
    *_, height, width = weight.shape
    return (
        spec.dtype is torch.float32
        and spec.shape[0] <= 1
        and given["groups"] == 1
        and not (height > 3 and width > 3)
        and spec.numel <= _MANY_ELEMENTS
    )


def _of_convolution(given: Mapping[str, Any], specs: Sequence[TensorSpec]) -> Format:
    """Channels last where the input or the weight is so, but for what the CPU's plain kernel computes."""
    for spec in specs[:2]:
        found = suggest_memory_format(spec.meta())
        if found is torch.channels_last_3d and _is_slow_on_cpu(given, specs[0], specs[1]):
            continue
        if found is not torch.contiguous_format:
            return found
    return torch.contiguous_format


def _of_convolution_1d(specs: Sequence[TensorSpec], result: torch.Tensor) -> torch.Tensor:
    """That of images of one row: the CPU makes the input contiguous first."""
    images = (specs[0].meta().contiguous().unsqueeze(2), specs[1].meta().unsqueeze(2))
    formats = [suggest_memory_format(image) for image in images]
    memory_format = formats[formats[0] is torch.contiguous_format]
    return torch.empty_like(result.unsqueeze(2), memory_format=memory_format).squeeze(2)


#   operator                                   the format of its results, from its arguments and tensors
FORMATS: dict[Any, Callable[[Mapping[str, Any], Sequence[TensorSpec]], Format]] = {
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
        aten._native_batch_norm_legit_no_training.default,
    )
)

# Which of the results of LAPACK's routines are matrices in column-major order.
COLUMN_MAJOR: dict[Any, tuple[int, ...]] = {
    aten.geqrf.default: (0,),
    aten.linalg_lstsq.default: (0,),
}

# Their results are transposed, by LAPACK or where the CPU transforms another dim first; an `out=` that has
# to grow is not.
CONTIGUOUS_OUT = frozenset(
    (
        aten._fft_c2c.default,
        aten._fft_c2r.default,
        aten._fft_r2c.default,
        aten.cholesky.default,
    )
)

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

# An `out=` that has elements is resized without a warning, as by what makes tensors.
RESIZES_SILENTLY = KEEPS_SHAPE_OF_OUT | {
    aten.addbmm.default,
    aten.log_sigmoid_forward.default,
    aten.multinomial.default,
    aten.narrow_copy.default,
    aten.rrelu_with_noise.default,
}

# Their results are contiguous whatever their tensors' strides, which the meta functions keep.
_CONTIGUOUS = frozenset(
    (
        aten._dirichlet_grad.default,
        aten._standard_gamma_grad.default,
        aten.binomial.default,
        aten.huber_loss_backward.default,
        aten.isin.Tensor_Scalar,
        aten.isin.Tensor_Tensor,
        aten.log_sigmoid_forward.default,
        aten.mse_loss_backward.default,
        aten.nll_loss2d_forward.default,
        aten.normal.Tensor_Tensor,
        aten.normal.Tensor_float,
        aten.normal.float_Tensor,
        aten.smooth_l1_loss_backward.default,
    )
)

# Computed element by element, though PyTorch has no tag that says so. Losses are, where they are not reduced.
_POINTWISE = frozenset(
    (
        aten._prelu_kernel.default,
        aten._prelu_kernel_backward.default,
        aten.binary_cross_entropy.default,
        aten.binary_cross_entropy_backward.default,
        aten.complex.default,
        aten.elu_backward.default,
        aten.floor_divide.default,
        aten.hardshrink_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardswish_backward.default,
        aten.hardtanh_backward.default,
        aten.huber_loss.default,
        aten.leaky_relu_backward.default,
        aten.log_sigmoid_backward.default,
        aten.mish_backward.default,
        aten.mse_loss.default,
        aten.native_dropout_backward.default,
        aten.polar.default,
        aten.rrelu_with_noise_backward.default,
        aten.rsub.Tensor,
        aten.smooth_l1_loss.default,
        aten.soft_margin_loss_backward.default,
        aten.softplus_backward.default,
        aten.softshrink_backward.default,
    )
)
# Pointwise by their tags; on the CPU a copy of the input is filled.
_FILLS = frozenset((aten.masked_fill.Scalar, aten.masked_fill.Tensor))

# Which tensors the CPU's iterator sees, where those are not the operator's own: another order, or one of
# them is a result of its own, which is contiguous.
_ITERATES_OVER: dict[Any, Callable[[Sequence[TensorSpec]], Sequence[TensorSpec]]] = {
    aten.ldexp.Tensor: lambda specs: (
        (specs[0], contiguous_spec(specs[1].shape, specs[1].dtype))
        if specs[1].dtype == _computed_in(specs)
        else specs
    ),
    aten._prelu_kernel_backward.default: lambda specs: (specs[1], specs[2], specs[0]),
    aten.binary_cross_entropy.default: lambda specs: specs[:1],
    aten.binary_cross_entropy_backward.default: lambda specs: specs[1:2],
    aten.leaky_relu_backward.default: lambda specs: (specs[1], specs[0]),
    aten.log_sigmoid_backward.default: lambda specs: specs[:1],
    aten.rrelu_with_noise_backward.default: lambda specs: (specs[1], specs[0]),
    aten.rsub.Tensor: lambda specs: (specs[1], specs[0]),
    aten.soft_margin_loss_backward.default: lambda specs: (specs[2], specs[1]),
    aten.threshold_backward.default: lambda specs: (specs[1], specs[0]),
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


def _is_iterated(op: Any, specs: Sequence[TensorSpec], results: Any) -> bool:
    """Whether tensors that look differently are computed element by element."""
    if op in _POINTWISE:
        first = results[0] if isinstance(results, tuple) else results
        return first.numel() > 0 and first.ndim == max(len(spec.shape) for spec in specs)
    if not isinstance(results, torch.Tensor) or not results.numel():
        return False
    if torch.Tag.pointwise not in op.tags or op in _FILLS:
        return False
    return len({(spec.shape, spec.strides, spec.dtype) for spec in specs}) > 1


def _computed_in(specs: Sequence[TensorSpec]) -> torch.dtype:
    """Bools promote nothing, and PyTorch promotes no float8 with them: `where` of some has a condition."""
    found = {spec.dtype for spec in specs}
    return reduce(torch.promote_types, found - {torch.bool} or found)


def _of_attention_backward(
    given: Mapping[str, Any], specs: Sequence[TensorSpec], results: Any
) -> Any:
    """Heads lie inside positions, by the CPU's flash kernel; its composition transposes keys."""
    _, query, key, value = specs[:4]
    gradients, rest = results[:3], results[3:]
    wants_bias = given["attn_bias"] is not None and given["grad_input_mask"][3]
    if wants_bias or _is_composed(given, (query, key, value)):
        of_query, of_key, of_value = (g.contiguous() for g in gradients)
        if query.shape[-3] == key.shape[-3]:
            of_key = of_key.mT.contiguous().mT
        return of_query, of_key, of_value, *rest
    return *[g.transpose(-3, -2).contiguous().transpose(-3, -2) for g in gradients], *rest


def _of_attention(given: Mapping[str, Any], specs: Sequence[TensorSpec], results: Any) -> Any:
    """Contiguous where the CPU composes it."""
    if _is_composed(given, specs[:3]):
        return results[0].contiguous(), *results[1:]
    return results


def _is_composed(given: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> bool:
    """Whether the CPU's flash kernel refuses: dropout, rows with gaps, values of another width."""
    query, _, value = inputs
    gaps = any(spec.strides[-1] != 1 for spec in inputs)
    return bool(given["dropout_p"]) or gaps or query.shape[-1] != value.shape[-1]


def laid_out(op: Any, given: Mapping[str, Any], specs: Sequence[TensorSpec], results: Any) -> Any:
    """The meta tensors that an operator gives, in the format in which the CPU kernel gives them."""
    if op is aten._scaled_dot_product_fused_attention_overrideable.default:
        return _of_attention(given, specs, results)
    if op is aten._scaled_dot_product_fused_attention_overrideable_backward.default:
        return _of_attention_backward(given, specs, results)
    if op is aten.linalg_lstsq.default and len(specs[1].shape) < len(specs[0].shape):
        return results  # one right-hand side for each matrix
    if (positions := COLUMN_MAJOR.get(op)) is not None:
        return tuple(r.mT.contiguous().mT if i in positions else r for i, r in enumerate(results))
    if op in FIRST_AS_FIRST:
        first = torch.empty_like(results[0], memory_format=_of_first(given, specs))
        results = (first, *results[1:])
    if (kept := STATISTICS.get(op)) is not None:
        dtype = specs[0].dtype
        if all(spec.dtype == dtype for spec in specs):
            narrow = [r.to(dtype) for r in results[kept]]
            results = (*results[: kept.start], *narrow, *results[kept.stop :])
        return results
    if _is_iterated(op, specs, results):
        specs = _ITERATES_OVER.get(op, lambda specs: specs)(specs)

        def iterated(result: torch.Tensor) -> torch.Tensor:
            strides = iterated_strides(result.shape, specs, _computed_in(specs))
            return torch.empty_strided(result.shape, strides, dtype=result.dtype, device="meta")

        return tuple(map(iterated, results)) if isinstance(results, tuple) else iterated(results)
    if op in _CONTIGUOUS:
        if isinstance(results, torch.Tensor):
            return results.contiguous()
        return tuple(r.contiguous() for r in results)
    format_of = FORMATS.get(op)
    if format_of is None:
        return results
    if format_of is _of_convolution and results.ndim == 3:
        return _of_convolution_1d(specs, results)
    memory_format = format_of(given, specs)
    if _DIMS.get(memory_format) != results.ndim:
        return results
    return torch.empty_like(results, memory_format=memory_format)
