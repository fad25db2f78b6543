"""Quantized weights, and programs that leave PyTorch behind.

Export:

    export          a module as programs of StableHLO with their weights: an ExportedModel, which is saved
                    to a folder that runs without PyTorch
    EntryPoint      one of several ways to call an exported module
    save_tensorflow    an exported model as TensorFlow's SavedModel
    load            a folder that was saved, as a module of PyTorch again
    LoadedModule    that module

Weights of few bits:

    quantize_       put layers with small weights in the place of a module's linear layers
    Int8, Int4, Nf4, Float8    how small: what `quantize_` takes
    QuantizedLinear, Int8Linear, Int4Linear, Nf4Linear, Float8Linear    those layers; OrderedInt4Linear and
                    ScaledInt4Linear are what checkpoints, GPTQ and AWQ have
    gptq_, awq_     `quantize_` to four bits that looks at calibration data
    load_quantized_    fill a module from a checkpoint of GPTQ, AWQ, compressed-tensors or bitsandbytes
    load_gguf_      the same from a GGUF file
    float8_training_    linear layers (Float8TrainingLinear) that train with products of float8
    add_lora_       adapters (LoraLinear) that are trained on top of such layers
    to_cache, from_cache    keys and values of a cache in int8 or float8
    shard_linear, shard_linears_    spread such a layer over a mesh, or all of a module by their names
    PjrtQuantizer, lower_pt2e    for torchao's `prepare_pt2e`, and what its `convert_pt2e` gives as products
                    of integers
    from_torchao_   the same of linear layers that torchao has quantized
    packing         what the formats' numbers mean: a module
    operators       the products, `torch.ops.torch_pjrt_quant.*`: a module
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_pjrt_quant import operators, packing
    from torch_pjrt_quant.cache import from_cache, to_cache
    from torch_pjrt_quant.calibrated import awq_, gptq_
    from torch_pjrt_quant.checkpoints.loading import load_gguf_, load_quantized_
    from torch_pjrt_quant.exporting.entry import EntryPoint
    from torch_pjrt_quant.exporting.model import ExportedModel
    from torch_pjrt_quant.exporting.module import LoadedModule, load
    from torch_pjrt_quant.exporting.program import export
    from torch_pjrt_quant.exporting.saved_model import save_tensorflow
    from torch_pjrt_quant.float8_training import Float8TrainingLinear, float8_training_
    from torch_pjrt_quant.linear import (
        Float8,
        Float8Linear,
        Int4,
        Int4Linear,
        Int8,
        Int8Linear,
        Nf4,
        Nf4Linear,
        OrderedInt4Linear,
        QuantizedLinear,
        ScaledInt4Linear,
    )
    from torch_pjrt_quant.lora import LoraLinear, add_lora_
    from torch_pjrt_quant.pt2e.lowering import lower_pt2e
    from torch_pjrt_quant.pt2e.quantizer import PjrtQuantizer
    from torch_pjrt_quant.replacing import quantize_
    from torch_pjrt_quant.sharding import shard_linear, shard_linears_
    from torch_pjrt_quant.with_torchao import from_torchao_

__version__ = "0.1.0"
__all__ = [
    "EntryPoint",
    "ExportedModel",
    "Float8",
    "Float8Linear",
    "Float8TrainingLinear",
    "Int4",
    "Int4Linear",
    "Int8",
    "Int8Linear",
    "LoadedModule",
    "LoraLinear",
    "Nf4",
    "Nf4Linear",
    "OrderedInt4Linear",
    "PjrtQuantizer",
    "QuantizedLinear",
    "ScaledInt4Linear",
    "add_lora_",
    "awq_",
    "export",
    "float8_training_",
    "from_cache",
    "from_torchao_",
    "gptq_",
    "load",
    "load_gguf_",
    "load_quantized_",
    "lower_pt2e",
    "operators",
    "packing",
    "quantize_",
    "save_tensorflow",
    "shard_linear",
    "shard_linears_",
    "to_cache",
]

# Names by the modules that they are in, which are loaded on first use.
_WHERE: dict[str, str] = {
    "exporting.module": "LoadedModule load",
    "exporting.entry": "EntryPoint",
    "exporting.model": "ExportedModel",
    "exporting.program": "export",
    "exporting.saved_model": "save_tensorflow",
    "float8_training": "Float8TrainingLinear float8_training_",
    "lora": "LoraLinear add_lora_",
    "pt2e.lowering": "lower_pt2e",
    "pt2e.quantizer": "PjrtQuantizer",
    "sharding": "shard_linear shard_linears_",
    "with_torchao": "from_torchao_",
    "linear": "Float8 Float8Linear Int4 Int4Linear Int8 Int8Linear Nf4 Nf4Linear "
    "OrderedInt4Linear QuantizedLinear ScaledInt4Linear",
    "replacing": "quantize_",
    "cache": "from_cache to_cache",
    "calibrated": "awq_ gptq_",
    "checkpoints.loading": "load_gguf_ load_quantized_",
}
_MODULES = ("operators", "packing")
_LAZY = {name: module for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    if name in _LAZY:
        from torch_pjrt.extend import lazy_attribute

        globals()[name] = found = lazy_attribute(f"{__name__}.{_LAZY[name]}", name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
