"""The plugin: rules for operators of PyTorch's, on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_pjrt.plugin import impl

if TYPE_CHECKING:
    from torch_pjrt.plugin import Device, LoweringTable


@impl
def torch_pjrt_lowerings(device: Device) -> LoweringTable | None:
    """Rules that stand over the device's own."""
    from torch_pjrt.plugin import LoweringTable
    from torch_pjrt_kernels import experts, reporting
    from torch_pjrt_kernels.attention import lowerings as attention  # which import JAX
    from torch_pjrt_kernels.cross_entropy import of_pytorch
    from torch_pjrt_kernels.flex import operator as flex
    from torch_pjrt_kernels.flex import varlen
    from torch_pjrt_kernels.triton import operators as triton

    reporting.register()
    flex.install()
    varlen.install()
    of_pytorch.install()
    experts.install()
    triton.install()
    return LoweringTable.merged(device.name, (attention.table,))
