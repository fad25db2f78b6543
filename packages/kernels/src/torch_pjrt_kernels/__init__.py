"""Kernels for what dominates training and serving, and your own ones as PyTorch operators.

Installing the package is enough: long `scaled_dot_product_attention` takes memory that grows with the length,
and not with its square.

    flash_attention         attention in more forms: windows, ALiBi, segments, soft caps, sinks
    linear_cross_entropy    the loss behind a linear layer, without all logits
    paged_attention         attention to a cache in pages; update_pages writes to it in place
    ragged_paged_attention  the same for prompts and single tokens at once, also of quantized pages, which
                            update_ragged_pages writes
    rotary                  rotary positions as one operator, by a kernel on TPUs
    pallas_op               your own kernel, in Pallas or any JAX, as an operator of PyTorch
    triton_call             your own kernel in Triton, with what other devices compute in its place
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_pjrt_kernels.attention.operator import flash_attention
    from torch_pjrt_kernels.cross_entropy.operator import linear_cross_entropy
    from torch_pjrt_kernels.own.pallas_op import pallas_op
    from torch_pjrt_kernels.paged.operator import paged_attention, update_pages
    from torch_pjrt_kernels.paged.ragged import ragged_paged_attention, update_ragged_pages
    from torch_pjrt_kernels.rotary.operator import rotary
    from torch_pjrt_kernels.triton.own_call import triton_call

__version__ = "0.1.0"
__all__ = [
    "flash_attention",
    "linear_cross_entropy",
    "paged_attention",
    "pallas_op",
    "ragged_paged_attention",
    "rotary",
    "triton_call",
    "update_pages",
    "update_ragged_pages",
]

# Names by the modules that they are in, which are loaded on first use.
_WHERE: dict[str, str] = {
    "attention.operator": "flash_attention",
    "cross_entropy.operator": "linear_cross_entropy",
    "own.pallas_op": "pallas_op",
    "paged.operator": "paged_attention update_pages",
    "paged.ragged": "ragged_paged_attention update_ragged_pages",
    "rotary.operator": "rotary",
    "triton.own_call": "triton_call",
}
_LAZY = {name: module for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from torch_pjrt.extend import lazy_attribute

        globals()[name] = found = lazy_attribute(f"{__name__}.{_LAZY[name]}", name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
