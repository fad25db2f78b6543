"""Lowering of annotations: the rule of their kind, which gives an array of the same shape and dtype."""

from __future__ import annotations

import jax

from torch_pjrt import annotations
from torch_pjrt.lowering.table import LoweringTable

Array = jax.Array

table = LoweringTable("annotation")


@table.lowers(annotations.ANNOTATE)
def annotate(self: Array, kind: str, value: str) -> Array:
    return annotations.applied(self, kind, value)
