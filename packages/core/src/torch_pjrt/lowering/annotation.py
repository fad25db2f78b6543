"""Lowering of annotations: the rule of their kind, which gives an array of the same shape and dtype."""

from __future__ import annotations

import jax

from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.lowering.value_annotations import ANNOTATE, applied

Array = jax.Array

table = LoweringTable("annotation")


@table.lowers(ANNOTATE)
def annotate(self: Array, kind: str, value: str) -> Array:
    return applied(self, kind, value)
