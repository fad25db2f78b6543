"""How other tools write weights of few bits, one function a format: their tensors become a layer of ours.

Each function takes the tensors of one linear layer by their short names and the layer's sizes. The numbers
stay what they are: the layer's `dequantized()` is what the format defines, in float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
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
    zero = (_halves(tensors["qzeros"], 1).T + more).contiguous()
    group = columns // scale.shape[1]
    group_of = tensors.get("g_idx")
    plain = torch.arange(columns, device="cpu") // group
    if group_of is None or torch.equal(group_of.cpu().long(), plain):
        return Int4Linear(*sizes, (packing.pack(numbers, group), scale, zero))
    order = group_of.cpu().long().argsort(stable=True)
    if not torch.equal(group_of.cpu().long()[order], plain):
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
    zero = rows(tensors["qzeros"]).contiguous()
    packed = packing.pack(rows(tensors["qweight"]), columns // scale.shape[1])
    return Int4Linear(*sizes, (packed, scale, zero))


def compressed_tensors(
    tensors: Tensors, sizes: Sizes, config: Mapping[str, Any]
) -> QuantizedLinear:
    """compressed-tensors': four bits in int32 words (`pack-quantized`), int8 and float8 (`weight`)."""
    if "weight_packed" in tensors:
        return _packed(tensors, sizes)
    weight, scale = tensors["weight"], tensors["weight_scale"].float()
    if scale.ndim == 2 and min(scale.shape) > 1:
        return _blocks(weight, scale, sizes, _block_of(config))
    zero = tensors.get("weight_zero_point")
    if zero is not None and bool(zero.float().any()):
        raise ValueError("int8 with zero points has no counterpart here")
    return _by_row(weight, scale, sizes, dynamic=_quantizes_inputs(config))


def _packed(tensors: Tensors, sizes: Sizes) -> QuantizedLinear:
    columns, n_rows = sizes
    words = tensors["weight_packed"]
    if words.shape[1] * 8 != columns:
        raise ValueError(f"{words.shape[1]} words for {columns} columns: not four bits a number")
    if (group_of := tensors.get("weight_g_idx")) is not None and bool((group_of < 0).any()):
        group_of = None
    scale = tensors["weight_scale"].float().view(n_rows, -1)
    zero = tensors.get("weight_zero_point")
    if zero is not None:
        is_packed = zero.dtype is torch.int32
        zero = _halves(zero, 0)[:n_rows] if is_packed else packing.from_middle(zero)
    group = columns // scale.shape[1]
    numbers = _halves(words, 1)
    if group_of is None or torch.equal(
        group_of.cpu().long(), torch.arange(columns, device="cpu") // group
    ):
        return Int4Linear(*sizes, (packing.pack(numbers, group), scale, zero))
    order = group_of.long().argsort(stable=True)
    packed = packing.pack(numbers[:, order], group)
    return OrderedInt4Linear(*sizes, (packed, scale, zero), order=order)


def _by_row(weight: Tensor, scale: Tensor, sizes: Sizes, *, dynamic: bool) -> QuantizedLinear:
    """int8 or float8 with a scale for each row, or one for all rows."""
    n_rows = sizes[1]
    scale = scale.reshape(-1).expand(n_rows) if scale.numel() == 1 else scale.reshape(n_rows)
    made = {torch.int8: Int8Linear, torch.float8_e4m3fn: Float8Linear}.get(weight.dtype)
    if made is None:
        raise ValueError(f"numbers of {weight.dtype}, and int8 or float8_e4m3fn are read")
    return made(*sizes, (weight, scale.contiguous()), dynamic=dynamic)


def _blocks(weight: Tensor, scale: Tensor, sizes: Sizes, block: Sequence[int]) -> QuantizedLinear:
    """float8 with a scale for each block of rows and columns; a row gets the scales of its blocks."""
    columns, n_rows = sizes
    height, width = block
    expected = [-(-n_rows // height), -(-columns // width)]
    if list(scale.shape) != expected or columns % width:
        raise ValueError(
            f"scales {list(scale.shape)} for blocks of {height} x {width} in {n_rows} x {columns} numbers, "
            f"and {expected} are expected, with whole blocks in a row"
        )
    if weight.dtype is not torch.float8_e4m3fn:
        raise ValueError(f"blocks of {weight.dtype}, and only those of float8_e4m3fn are read")
    by_row = scale.float().repeat_interleave(height, 0)[:n_rows]
    return Float8Linear(*sizes, (weight, by_row.contiguous()))


def _block_of(config: Mapping[str, Any]) -> Sequence[int]:
    """How many rows and columns have one scale."""
    if given := config.get("weight_block_size"):
        return given
    groups = config.get("config_groups") or {}
    structures = [(g.get("weights") or {}).get("block_structure") for g in groups.values()]
    return next((s for s in structures if s), (128, 128))


def _quantizes_inputs(config: Mapping[str, Any]) -> bool:
    """Whether inputs become numbers of 8 bits by rows, in each call.

    What has one scale for all of an input, known or not, gets one for each of its rows, which loses less.
    """
    groups = (config.get("config_groups") or {}).values()
    wanted = [
        g.get("input_activations") for g in groups if (g.get("weights") or {}).get("num_bits") == 8
    ]
    return any(w and w.get("num_bits", 8) == 8 and w.get("symmetric", True) for w in wanted)


def fp8(tensors: Tensors, sizes: Sizes, config: Mapping[str, Any]) -> QuantizedLinear:
    """float8 as DeepSeek and Qwen write it: `weight_scale_inv`, what numbers of a block are multiplied by."""
    scale = tensors["weight_scale_inv"]
    return _blocks(tensors["weight"], scale, sizes, _block_of(config))


def bitsandbytes(tensors: Tensors, sizes: Sizes, config: Mapping[str, Any]) -> QuantizedLinear:
    """bitsandbytes': NF4, and int8 with the largest value of each row (`SCB`).

    NF4 is packed (the first number in the high half), with an `absmax` for each block, perhaps in 8 bits.
    """
    columns, n_rows = sizes
    if "SCB" in tensors:
        scale = tensors["SCB"].float().reshape(n_rows) / 127
        return Int8Linear(*sizes, (tensors["weight"].reshape(n_rows, columns), scale))
    if "weight.quant_state.bitsandbytes__fp4" in tensors:
        raise ValueError("numbers of FP4, and only those of NF4 are read")
    written = tensors["weight.quant_state.bitsandbytes__nf4"]
    state = json.loads(bytes(written.cpu().tolist()))
    size = state["blocksize"]
    if columns % size:
        raise ValueError(f"its blocks of {size} go over the ends of rows of {columns}")
    absmax = tensors["weight.absmax"]
    if "weight.nested_absmax" in tensors:
        within = tensors["weight.nested_quant_map"].float()[absmax.long()].flatten()
        factor = tensors["weight.nested_absmax"].float()
        blocks = torch.arange(len(within), device=within.device) // state["nested_blocksize"]
        absmax = within * factor[blocks] + state["nested_offset"]
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


@dataclass(frozen=True, slots=True)
class Method:
    """How a method's layers are read, and the tensors without which a layer is none of its own.

    needed    one or more sets of names; a quantized layer has all of one of them.
    """

    read: Read
    needed: tuple[frozenset[str], ...]

    def are_there(self, names: Set[str]) -> bool:
        """Whether a layer with tensors of these names is quantized."""
        return any(names >= needed for needed in self.needed)


def _needs(*names: str) -> frozenset[str]:
    return frozenset(names)


METHODS: dict[str, Method] = {
    "gptq": Method(gptq, (_needs("qweight", "qzeros", "scales"),)),
    "awq": Method(awq, (_needs("qweight", "qzeros", "scales"),)),
    "compressed-tensors": Method(
        compressed_tensors,
        (_needs("weight", "weight_scale"), _needs("weight_packed", "weight_scale")),
    ),
    "bitsandbytes": Method(
        bitsandbytes,
        (
            _needs("weight.quant_state.bitsandbytes__nf4"),
            _needs("weight.quant_state.bitsandbytes__fp4"),
            _needs("weight", "SCB"),
        ),
    ),
    "fp8": Method(fp8, (_needs("weight", "weight_scale_inv"),)),
}


def objection_to(method: str, config: Mapping[str, Any]) -> str | None:
    """Why checkpoints of this configuration are not read, or None."""
    bits = config.get("bits", config.get("w_bit", 4))
    if method in ("gptq", "awq") and bits != 4:
        return f"the checkpoint has {bits} bits a number, and only 4 are read"
    version = str(config.get("version", "gemm")).lower()
    if method == "awq" and version != "gemm":
        return f"the checkpoint has AWQ's version {version!r}, and only 'gemm' is read"
    return None


def read_layer(
    method: str, name: str, parts: Tensors, linear: torch.nn.Linear, config: Mapping[str, Any]
) -> QuantizedLinear:
    """A quantized layer in the place of a linear one, with the bias that is there.

    Raises `ValueError`, which names the layer, for what it is not.
    """
    sizes = linear.in_features, linear.out_features
    try:
        made = METHODS[method].read(parts, sizes, config)
        wide = made.weight.shape[1] * (2 if made.weight.dtype is torch.uint8 else 1)
        if (wide, made.weight.shape[0]) != sizes:
            raise RuntimeError("other sizes")
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from error
    except (RuntimeError, TypeError, KeyError, IndexError, ZeroDivisionError) as error:
        there = ", ".join(f"{n} {t.dtype}{list(t.shape)}" for n, t in sorted(parts.items()))
        raise ValueError(
            f"`{name}` is no layer of {sizes[1]} x {sizes[0]} as {method} writes it: {there}"
        ) from error
    bias = parts.get("bias")
    # Some tools write a bias of zeros for a layer that has none.
    if bias is not None and (linear.bias is not None or bool(bias.any())):
        made.bias = torch.nn.Parameter(bias)
    return made
