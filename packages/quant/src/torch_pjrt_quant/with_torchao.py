"""torchao's `quantize_` on modules that are on `pjrt`: its configurations as layers of ours.

torchao's tensor subclasses call kernels of other vendors, or read values layer by layer. So its handler of a
configuration is given to it anew (`register_quantize_module_handler`): linear layers on `pjrt` become layers
of ours, all others go torchao's way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.extend import after_import
from torch_pjrt_quant import packing
from torch_pjrt_quant.linear import (
    Config,
    Float8,
    Float8Linear,
    Int4,
    Int4Linear,
    Int8,
    Int8Linear,
    QuantizedLinear,
)
from torch_pjrt_quant.replacing import off_fast_paths
from torch_pjrt_quant.sharding import lie_as

Translate = Callable[[Any], Config | None]


def _granularities(config: Any) -> set[str]:
    """Names of what has a scale of its own; nothing where the configuration does not say."""
    given = getattr(config, "granularity", None)
    several = given if isinstance(given, (list, tuple)) else [given]
    return {type(g).__name__ for g in several if g is not None}


def _per_row(config: Any) -> bool:
    return _granularities(config) <= {"PerRow", "PerAxis"}


def _is_symmetric(config: Any, name: str) -> bool:
    return getattr(getattr(config, name, None), "name", "SYMMETRIC") == "SYMMETRIC"


def _int8(config: Any) -> Config | None:
    by_group = getattr(config, "group_size", None) is not None
    return Int8() if _per_row(config) and not by_group else None


def _int8_dynamic(config: Any) -> Config | None:
    symmetric = _is_symmetric(config, "act_mapping_type")
    return Int8(dynamic=True) if _per_row(config) and symmetric else None


def _int4(config: Any) -> Config | None:
    size = getattr(config, "group_size", None)
    return Int4(size) if size is not None and size > 0 else None


def _float8(config: Any) -> Config | None:
    return Float8() if _is_e4m3(config) and _per_row_or_tensor(config) else None


def _float8_dynamic(config: Any) -> Config | None:
    return Float8(dynamic=True) if _is_e4m3(config) and _per_row_or_tensor(config) else None


def _per_row_or_tensor(config: Any) -> bool:
    """A scale for each row where one for a whole tensor (torchao's default) is asked for loses less."""
    return _granularities(config) <= {"PerRow", "PerAxis", "PerTensor"}


def _is_e4m3(config: Any) -> bool:
    return getattr(config, "weight_dtype", torch.float8_e4m3fn) is torch.float8_e4m3fn


def _intx(config: Any) -> Config | None:
    dtype = getattr(config, "weight_dtype", None)
    group = getattr(getattr(config, "granularity", None), "group_size", None)
    symmetric = _is_symmetric(config, "mapping_type")
    if str(dtype) == "torch.int4" and group is not None:
        return Int4(group, symmetric=symmetric)
    return Int8() if dtype is torch.int8 and symmetric and _per_row(config) else None


#   torchao's configuration, what it is here, or None where it goes torchao's way
CONFIGS: dict[str, Translate] = {
    "Int8WeightOnlyConfig": _int8,
    "Int8DynamicActivationInt8WeightConfig": _int8_dynamic,
    "Int4WeightOnlyConfig": _int4,
    "Float8WeightOnlyConfig": _float8,
    "Float8DynamicActivationFloat8WeightConfig": _float8_dynamic,
    "IntxWeightOnlyConfig": _intx,
}


def take_part() -> None:
    """Give torchao its handlers, once it is imported. The plugin calls it when the device starts."""
    after_import("torchao.quantization.quant_api", _take_part)


def _take_part(quant_api: Any) -> None:
    register = getattr(quant_api, "register_quantize_module_handler", None)
    handlers = getattr(quant_api, "_QUANTIZE_CONFIG_HANDLER", {})
    for name, translate in CONFIGS.items():
        config = getattr(quant_api, name, None)
        handler = handlers.get(config)
        if register is not None and handler is not None:
            register(config)(_handler(handler, translate))


def _handler(theirs: Callable[..., Any], translate: Translate) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def handler(module: torch.nn.Module, config: Any, **more: Any) -> Any:
        if type(module) is not torch.nn.Linear or module.weight.device.type != "pjrt" or more:
            return theirs(module, config, **more)
        ours = translate(config)
        if ours is None:
            return theirs(module, config, **more)
        if isinstance(ours, Int4) and module.in_features % ours.group_size:
            return module  # as torchao does
        made = ours.layer(module)
        lie_as(made, module)
        return made

    return handler


def from_torchao_(model: torch.nn.Module) -> torch.nn.Module:
    """Put layers of ours in the place of linear layers whose weights torchao has quantized, on the CPU, say.

    Takes what torchao 0.18 makes of the configurations for int8 and float8 with a scale for each row, and its
    unpacked int4 (`IntxWeightOnlyConfig`). The numbers are the same. Returns the module. Raises `ValueError`,
    which names the layer, for weights of another kind.
    """
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            weight = getattr(child, "weight", None)
            if isinstance(child, torch.nn.Linear) and hasattr(weight, "qdata"):
                try:
                    setattr(parent, name, _adopted(child, weight))
                except ValueError as error:
                    path = f"{parent_name}.{name}" if parent_name else name
                    raise ValueError(f"`{path}`: {error}") from error
    return off_fast_paths(model)


def _adopted(linear: torch.nn.Linear, weight: Any) -> QuantizedLinear:
    data, scale = weight.qdata, weight.scale.float()
    sizes = linear.in_features, linear.out_features
    dynamic = getattr(weight, "act_quant_kwargs", None) is not None
    by_row = scale.numel() == linear.out_features
    zero = getattr(weight, "zero_point", None)
    if data.dtype is torch.float8_e4m3fn and by_row:
        return Float8Linear(*sizes, (data, scale.view(-1)), linear.bias, dynamic=dynamic)
    if str(getattr(weight, "target_dtype", None)) == "torch.int4":
        size = linear.in_features // scale.shape[1]
        numbers = packing.pack(data.to(torch.int16) + 8, size)
        zeros = None if zero is None else packing.from_middle(zero)
        return Int4Linear(*sizes, (numbers, scale, zeros), linear.bias)
    if data.dtype is torch.int8 and by_row and (zero is None or not zero.any()):
        return Int8Linear(*sizes, (data, scale.view(-1)), linear.bias, dynamic=dynamic)
    raise ValueError(
        f"{type(weight).__name__} ({data.dtype}, scales {list(scale.shape)}) has no counterpart"
    )
