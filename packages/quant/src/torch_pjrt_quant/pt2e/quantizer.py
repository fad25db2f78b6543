"""A quantizer for torchao's `prepare_pt2e`: which operators become products of int8, and how."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.plugin import aten, client
from torch_pjrt_quant.pt2e.attention import split_attention

Node = torch.fx.Node

CONVOLUTIONS = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
#   kind, its operators: what `only` takes
KINDS: dict[str, tuple[Any, ...]] = {
    "linear": (aten.linear.default,),
    "convolution": CONVOLUTIONS,
    "matmul": (aten.matmul.default, aten.bmm.default),
    "embedding": (aten.embedding.default,),
}

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

# TPUs convolve fewer images than this slower in int8 than in bfloat16 (benchmarks/quant_convolutions.py).
FEW_IMAGES = 16


class PjrtQuantizer:
    """Says to `prepare_pt2e` and `prepare_qat_pt2e` what `lower_pt2e` can compute with int8.

    dynamic        ranges of activations are measured in each call, not with calibration data.
    per_channel    a scale for each channel of a weight, not one for all.
    training       fake quantization that learns (QAT: `prepare_qat_pt2e`), not observation.
    attention      scaled dot products become two products of int8 around a softmax.
    only           which kinds: "linear", "convolution", "matmul", "embedding"; all unless given.
    which          of a node of the graph, whether it is quantized; all are, unless it says otherwise.

    Weights are symmetric, from -127 to 127; activations have a scale and a zero for each tensor. An embedding
    has a scale for each row. Raises `ValueError` for another kind. It has the methods of torchao's
    `Quantizer`, and needs torchao from when it is made.
    """

    def __init__(
        self,
        *,
        dynamic: bool = False,
        per_channel: bool = True,
        training: bool = False,
        attention: bool = True,
        only: tuple[str, ...] = tuple(KINDS),
        which: Callable[[Node], bool] | None = None,
    ) -> None:
        if unknown := [kind for kind in only if kind not in KINDS]:
            raise ValueError(f"`only` has {unknown[0]!r}, and takes {', '.join(KINDS)}")
        self._attention = attention and "matmul" in only
        self._kinds = {op: kind for kind in only for op in KINDS[kind]}
        self._which = which or (lambda _: True)
        self._floats = FLOATS[:1] if training else FLOATS  # what fake quantization takes
        self._activation = _activation(dynamic, training)
        self._weight = _weight(per_channel, training)
        self._rows = _weight(True, training)

    def transform_for_annotation(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Attention in two products, where it is to be quantized."""
        return split_attention(model) if self._attention else model

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Note at each operator of a kind what its inputs become."""
        from torchao.quantization.pt2e.quantizer import (  # pyright: ignore[reportMissingImports]
            QuantizationAnnotation,
        )

        few, left = False, None
        for node in model.graph.nodes:
            kind = self._kinds.get(node.target)
            if node.op != "call_function" or kind is None or not self._which(node):
                continue
            specs = [self._activation, self._activation if kind == "matmul" else self._weight]
            if kind == "embedding":
                specs = [self._rows]
            inputs = {
                given: spec
                for given, spec in zip(node.args, specs, strict=False)
                if isinstance(given, Node) and _dtype(given) in self._floats
            }
            if len(inputs) == len(specs):
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    inputs, _annotated=True
                )
                few = few or (kind == "convolution" and _images(node) < FEW_IMAGES)
            elif (dtype := _dtype(node)) in FLOATS and dtype not in self._floats:
                left = left or dtype
        if left is not None:
            warnings.warn(
                f"operators of {left} stay as they are, as PyTorch's fake quantization takes float32 alone: "
                "export `model.float()`",
                stacklevel=2,
            )
        if few and client().device.name == "tpu":
            warnings.warn(
                f"convolutions of int8 with fewer than {FEW_IMAGES} images are slower than bfloat16's on "
                'TPUs; `only=("linear", "matmul", "embedding")` leaves them as they are',
                stacklevel=2,
            )
        return model

    def validate(self, model: torch.fx.GraphModule) -> None:
        """Nothing that is annotated here cannot be computed."""

    def prepare_obs_or_fq_callback(self, model: torch.fx.GraphModule, observers: Any) -> None:
        """Observers stay as they are."""


def _images(node: Node) -> Any:
    """How many a convolution of the example has."""
    given = node.args[0]
    assert isinstance(given, Node)
    size = given.meta["val"].shape[0]
    return size if isinstance(size, int) else FEW_IMAGES


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _activation(dynamic: bool, training: bool) -> Any:
    from torchao.quantization import pt2e  # pyright: ignore[reportMissingImports]

    observer: Any = pt2e.HistogramObserver
    if dynamic:
        observer = pt2e.PlaceholderObserver
    elif training:
        observer = _trained(pt2e.MovingAverageMinMaxObserver)
    return _spec(observer, -128, torch.per_tensor_affine, is_dynamic=dynamic)


def _weight(per_channel: bool, training: bool) -> Any:
    from torchao.quantization import pt2e  # pyright: ignore[reportMissingImports]

    observer: Any = pt2e.PerChannelMinMaxObserver if per_channel else pt2e.MinMaxObserver
    if training and per_channel:
        observer = _trained(pt2e.MovingAveragePerChannelMinMaxObserver)
    elif training:
        observer = _trained(pt2e.MovingAverageMinMaxObserver)
    if per_channel:
        return _spec(observer, -127, torch.per_channel_symmetric, ch_axis=0)
    return _spec(observer, -127, torch.per_tensor_symmetric)


def _trained(observer: Any) -> Any:
    """Fake quantization that asks nothing in Python, so nothing is read from the device."""
    from torchao.quantization import pt2e  # pyright: ignore[reportMissingImports]

    return pt2e.FusedMovingAvgObsFakeQuantize.with_args(observer=observer)


def _spec(observer: Any, least: int, scheme: torch.qscheme, **more: Any) -> Any:
    from torchao.quantization.pt2e.quantizer import (  # pyright: ignore[reportMissingImports]
        QuantizationSpec,
    )

    return QuantizationSpec(
        dtype=torch.int8,
        observer_or_fake_quant_ctr=observer,
        quant_min=least,
        quant_max=127,
        qscheme=scheme,
        **more,
    )
