"""Layers with small weights on a mesh: their scales and zeros lie as their weights do."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, TypeVar

import torch

from torch_pjrt_quant.linear import QuantizedLinear

M = TypeVar("M", bound=torch.nn.Module)
# An axis of a mesh, several of them, or None: all of it on each chip.
Entry = Any


def shard_linear(
    layer: QuantizedLinear, mesh: Any, *, rows: Entry = None, columns: Entry = None
) -> QuantizedLinear:
    """Spread a layer over a mesh of torch_pjrt_spmd: weight, scales, zeros and bias. Returns the layer.

    layer      on the device, or on the CPU: then each chip gets its part, and no chip has all of it.
    mesh       as `torch_pjrt_spmd.mark_sharding` takes it.
    rows       the axis over which the weight's rows (outputs) are spread, as in column-parallel layers of
               Megatron's. They may be spread over up to 16 chips without leaving their chips.
    columns    the axis over which its columns (inputs) are spread, in whole groups: products are summed.

    Raises `ShardingError` of torch_pjrt_spmd where the axis does not divide a dim or the number of groups.
    """
    for name, tensor in list(layer.named_buffers(recurse=False)):
        # The order of columns and factors of them (GPTQ, AWQ) are small, and what is indexed is whole.
        spec = (rows, columns)[: tensor.ndim] if name in layer.names else (None,) * tensor.ndim
        setattr(layer, name, _spread(tensor, mesh, spec))
    if layer.bias is not None:
        bias = _spread(layer.bias, mesh, (rows,))
        if bias is not layer.bias:
            layer.bias = torch.nn.Parameter(bias.detach(), layer.bias.requires_grad)
    return layer


def shard_linears_(
    model: M, mesh: Any, specs: Mapping[str, Sequence[Entry]], *, others: bool = True
) -> M:
    """Spread the quantized layers of a module over a mesh, by their names. Returns the module.

    specs    of names, which may have wildcards, how the weight lies: for its rows and its columns an axis
             or None. The first name that fits counts: `{"*.up": ("model", None), "*.down": (None, "model")}`.
    others   what is not named lies whole on each chip: layers, and parameters and buffers that are on the
             CPU, so that a module that was loaded there is on the mesh.

    Raises `ValueError` for a name that fits no quantized layer; `ShardingError` as `shard_linear` does.
    """
    layers = {n: m for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    unknown = [p for p in specs if not any(fnmatch(name, p) for name in layers)]
    if unknown:
        raise ValueError(
            f"no quantized layer is named as {unknown[0]!r}; there are {', '.join(list(layers)[:5])}"
            f"{' ...' if len(layers) > 5 else ''}"
        )
    for name, layer in layers.items():
        found = next((spec for pattern, spec in specs.items() if fnmatch(name, pattern)), None)
        if found is not None or others:
            rows, columns = found or (None, None)
            shard_linear(layer, mesh, rows=rows, columns=columns)
    if others:
        _place_the_rest(model, mesh, set(layers.values()))
    return model


def _place_the_rest(model: torch.nn.Module, mesh: Any, done: set[Any]) -> None:
    """Whole on each chip, what is on the CPU and of no layer that is done; what is tied stays tied."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        if module in done:
            continue
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None or tensor.device.type != "cpu":
                    continue
                if id(tensor) not in moved:
                    there = _spread(tensor, mesh, (None,) * tensor.ndim)
                    if isinstance(tensor, torch.nn.Parameter):
                        there = torch.nn.Parameter(there.detach(), tensor.requires_grad)
                    moved[id(tensor)] = there
                tensors[name] = moved[id(tensor)]  # type: ignore[assignment]


def _spread(tensor: torch.Tensor, mesh: Any, spec: Sequence[Entry]) -> torch.Tensor:
    from torch_pjrt_spmd import distribute_tensor, mark_sharding

    if tensor.device.type == "cpu":
        return distribute_tensor(tensor.detach(), mesh, tuple(spec))
    return mark_sharding(tensor, mesh, tuple(spec))


def lie_as(made: QuantizedLinear, linear: torch.nn.Linear) -> None:
    """Spread a layer as the one that it is made of is, if that is on a mesh."""
    # Nothing is on a mesh before this module is there.
    if linear.weight.device.type != "pjrt" or "torch_pjrt_spmd.marks" not in sys.modules:
        return
    from torch_pjrt_spmd import sharding_of

    found = sharding_of(linear.weight)
    if found is not None:
        rows, columns = found.spec
        shard_linear(made, found.mesh, rows=rows, columns=columns)
