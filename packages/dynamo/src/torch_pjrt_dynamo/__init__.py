"""`torch.compile(backend="pjrt")`: compiled graphs as single nodes of the lazy tape.

run(program, *args)     run what `torch.export` made
partitions()            what forwards keep for their backwards
shapes()                what became of sizes that vary
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_pjrt.extend import lazy_attribute

if TYPE_CHECKING:
    from torch_pjrt_dynamo.exported import run
    from torch_pjrt_dynamo.padded.shapes_of_graphs import shapes
    from torch_pjrt_dynamo.partition import partitions

__all__ = ["partitions", "run", "shapes"]

_LAZY = {
    "partitions": "torch_pjrt_dynamo.partition",
    "run": "torch_pjrt_dynamo.exported",
    "shapes": "torch_pjrt_dynamo.padded.shapes_of_graphs",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return lazy_attribute(_LAZY[name], name)
    raise AttributeError(f"module 'torch_pjrt_dynamo' has no attribute {name!r}")
