"""How other tools write weights of few bits, one function a format: their tensors become a layer of ours.

Each function takes the tensors of one linear layer by their short names and the layer that they are for. The
numbers stay what they are: the layer's `dequantized()` is what the format defines, in float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_pjrt_quant import packing
from torch_pjrt_quant.linear import (
    Float8Linear,
    Int4Linear,
    Int8Linear,
    Nf4Linear,
    OrderedInt4Linear,
    QuantizedLinear,
)

Tensors = Mapping[str, Tensor]
Sizes = tuple[int, int]

# Which column each half byte of an AWQ word holds.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _halves(words: Tensor, dim: int) -> Tensor:
    """The eight numbers of each int32, the lowest bits first, along a dim."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    numbers = (words.unsqueeze(-1) >> shifts) & 15
    return numbers.movedim(-1, dim + 1).flatten(dim, dim + 1).to(torch.uint8)


def gptq(tensors: Tensors, sizes: Sizes, config: Mapping[str, Any]) -> QuantizedLinear:
    """AutoGPTQ's and GPTQModel's: `qweight` (columns / 8 x rows), `qzeros`, `scales`, `g_idx`.

    Zeros are written less one, unless the `checkpoint_format` is "gptq_v2".
    """
    columns, _ = sizes
    numbers = _halves(tensors["qweight"], 0).T  # rows x columns
    scale = tensors["scales"].T.float().contiguous()
    more = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    zero = (_halves(tensors["qzeros"], 1).T.float() + more).contiguous()
    group = columns // scale.shape[1]
    places = tensors.get("g_idx")
    plain = torch.arange(columns) // group
    if places is None or torch.equal(places.cpu().long(), plain):
        return Int4Linear(*sizes, (packing.pack(numbers, group), scale, zero))
    order = places.cpu().long().argsort(stable=True)
    if not torch.equal(places.cpu().long()[order], plain):
        raise ValueError("its groups (`g_idx`) are not all of one size")
    packed = packing.pack(numbers[:, order.to(numbers.device)], group)
    return OrderedInt4Linear(*sizes, (packed, scale, zero), order=order.to(numbers.device))


def awq(tensors: Tensors, sizes: Sizes, config: Mapping[str, Any]) -> QuantizedLinear:
    """AutoAWQ's (`gemm`): `qweight` (columns x rows / 8), `qzeros` (groups x rows / 8), `scales`."""
    columns, _ = sizes

    def rows(words: Tensor) -> Tensor:
        order = torch.tensor(AWQ_ORDER, device=words.device).argsort()
        return _halves(words, 1).view(len(words), -1, 8)[:, :, order].flatten(1).T

    scale = tensors["scales"].T.float().contiguous()
    zero = rows(tensors["qzeros"]).float().contiguous()
    packed = packing.pack(rows(tensors["qweight"]), columns // scale.shape[1])
    return Int4Linear(*sizes, (packed, scale, zero))


def compressed_tensors(
    tensors: Tensors, sizes: Sizes, config: Mapping[str, Any]
) -> QuantizedLinear:
    """compressed-tensors': four bits in int32 words (`pack-quantized`), int8 and float8 (`weight`)."""
    columns, n_rows = sizes
    scale = tensors["weight_scale"].float()
    if "weight_packed" not in tensors:
        weight = tensors["weight"]
        scale = scale.expand(n_rows) if scale.numel() == 1 else scale.view(n_rows, -1).squeeze(1)
        made = Float8Linear if weight.dtype is torch.float8_e4m3fn else Int8Linear
        zero = tensors.get("weight_zero_point")
        if zero is not None and bool(zero.float().any()):
            raise ValueError("int8 with zero points has no counterpart here")
        return made(*sizes, (weight, scale.contiguous()))
    words = tensors["weight_packed"]
    if words.shape[1] * 8 != columns:
        raise ValueError(f"{words.shape[1]} words for {columns} columns: not four bits a number")
    if (places := tensors.get("weight_g_idx")) is not None and bool((places < 0).any()):
        places = None
    scale = scale.view(n_rows, -1)
    zero = tensors.get("weight_zero_point")
    if zero is not None:
        zero = _halves(zero, 0)[:n_rows].float() if zero.dtype is torch.int32 else zero.float() + 8
    group = columns // scale.shape[1]
    numbers = _halves(words, 1)
    if places is None or torch.equal(places.cpu().long(), torch.arange(columns) // group):
        return Int4Linear(*sizes, (packing.pack(numbers, group), scale, zero))
    order = places.long().argsort(stable=True)
    packed = packing.pack(numbers[:, order], group)
    return OrderedInt4Linear(*sizes, (packed, scale, zero), order=order)


def bitsandbytes(tensors: Tensors, sizes: Sizes, config: Mapping[str, Any]) -> QuantizedLinear:
    """bitsandbytes' NF4: `weight` packed (the first number in the high half), `absmax`, perhaps in 8 bits."""
    columns, n_rows = sizes
    written = tensors["weight.quant_state.bitsandbytes__nf4"]
    state = json.loads(bytes(written.cpu().tolist()))
    size = state["blocksize"]
    if columns % size:
        raise ValueError(f"its blocks of {size} go over the ends of rows of {columns}")
    absmax = tensors["weight.absmax"]
    if "weight.nested_absmax" in tensors:
        within = tensors["weight.nested_quant_map"].float()[absmax.long()].flatten()
        factor = tensors["weight.nested_absmax"].float()
        places = torch.arange(len(within), device=within.device) // state["nested_blocksize"]
        absmax = within * factor[places] + state["nested_offset"]
    flat = tensors["weight"].flatten()
    numbers = torch.stack([flat >> 4, flat & 15], -1).view(n_rows, columns)
    scale = absmax.float().view(n_rows, columns // size)
    return Nf4Linear(*sizes, (packing.pack(numbers, size), scale))


def gguf_q4_0(raw: Tensor, sizes: Sizes) -> QuantizedLinear:
    """GGUF's Q4_0: blocks of 32, a float16 scale and 16 bytes. Its halves lie as ours do."""
    blocks = raw.view(sizes[1], -1, 18)
    scale = blocks[..., :2].contiguous().view(torch.float16)[..., 0].float()
    return Int4Linear(*sizes, (blocks[..., 2:].flatten(1), scale, None))


def gguf_q8_0(raw: Tensor, sizes: Sizes) -> QuantizedLinear:
    """GGUF's Q8_0: blocks of 32, a float16 scale and 32 int8."""
    blocks = raw.view(sizes[1], -1, 34)
    scale = blocks[..., :2].contiguous().view(torch.float16)[..., 0].float()
    return Int8Linear(*sizes, (blocks[..., 2:].contiguous().view(torch.int8).flatten(1), scale))


Read = Callable[[Tensors, Sizes, Mapping[str, Any]], QuantizedLinear]

#   method, the tensors of a layer without which it is none
METHODS: dict[str, tuple[Read, tuple[str, ...]]] = {
    "gptq": (gptq, ("qweight", "qzeros", "scales")),
    "awq": (awq, ("qweight", "qzeros", "scales")),
    "compressed-tensors": (compressed_tensors, ("weight_scale",)),
    "bitsandbytes": (bitsandbytes, ("weight.quant_state.bitsandbytes__nf4",)),
}
