"""What core asks this package: a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_pjrt.plugin import impl

if TYPE_CHECKING:
    from torch_pjrt.plugin import Device, Pass

# Hooks of models in parts are traced, as the forwards that they are around.
DYNAMO_SKIPS = ("torch_pjrt_fsdp.checkpoint", "torch_pjrt_fsdp.data")


@impl
def torch_pjrt_passes(device: Device) -> Sequence[Pass]:
    """Gradients of what is in parts come back in parts, and gathers wait for what their block computes on."""
    from torch_pjrt_fsdp.annotated.ordering import ReadThroughMarks, TieGathers
    from torch_pjrt_fsdp.annotated.scattering import ScatterGradients  # which imports JAX

    return [ScatterGradients(), ReadThroughMarks(), TieGathers()]
