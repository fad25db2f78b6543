"""The plugin: when the device starts, torchao's `quantize_` is told of it, and PT2E's operators get rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_pjrt.plugin import impl

if TYPE_CHECKING:
    from torch_pjrt.plugin import Device, LoweringTable


# What runs while a program is lowered. Layers are parts of users' models, which Dynamo is to trace.
DYNAMO_SKIPS = (
    "torch_pjrt_quant.plugin",
    "torch_pjrt_quant.rules",
    "torch_pjrt_quant.integers",
    "torch_pjrt_quant.pt2e.decomposed",
)


@impl
def torch_pjrt_lowerings(device: Device) -> LoweringTable | None:
    """No rules for PyTorch's operators; the hook is when the device is chosen."""
    from torch_pjrt_quant.pt2e.decomposed import give_rules
    from torch_pjrt_quant.with_torchao import take_part

    take_part()
    give_rules()
    return None
