"""Graph -> graph. The core's own passes are in `CORE_PASSES`; plugins add theirs by a hook."""

from torch_pjrt.passes.drop_unused import DropUnused
from torch_pjrt.passes.expand import Expand
from torch_pjrt.passes.merge_equal import MergeEqual
from torch_pjrt.passes.rolling import RollLayers
from torch_pjrt.passes.runner import Pass, Stage, in_order, run_passes

CORE_PASSES: tuple[Pass, ...] = (Expand(), MergeEqual(), DropUnused(), RollLayers())

__all__ = [
    "CORE_PASSES",
    "DropUnused",
    "Expand",
    "MergeEqual",
    "Pass",
    "RollLayers",
    "Stage",
    "in_order",
    "run_passes",
]
