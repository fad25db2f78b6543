"""Operators of the group `torch.ops.xla` that scripts call within `torch.compile`."""

from __future__ import annotations

import ast
import re

import torch

__all__ = ["dynamo_mark_sharding", "dynamo_set_buffer_donor_"]

_library: list[torch.library.Library] = []
SCHEMAS = (
    "dynamo_mark_sharding(Tensor input, int[] device_ids, int[] mesh_shape, str axis_names, "
    "str partition_spec) -> Tensor",
    "dynamo_set_buffer_donor_(Tensor t, bool should_donoate) -> Tensor",
    "flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor",
)


def dynamo_mark_sharding(
    input: torch.Tensor,
    device_ids: list[int],
    mesh_shape: list[int],
    axis_names: str,
    partition_spec: str,
) -> torch.Tensor:
    """`spmd.mark_sharding(input, Mesh(...), partition_spec)`, whose names and spec are texts of tuples."""
    from torch_xla.distributed import spmd

    mesh = spmd.Mesh(device_ids, mesh_shape, _names(axis_names))
    return spmd.mark_sharding(input, mesh, ast.literal_eval(partition_spec))


def dynamo_set_buffer_donor_(t: torch.Tensor, should_donoate: bool) -> torch.Tensor:
    """`t`. What is written in place is donated by itself; `torch.compile`'s option `donate` names more."""
    return t


def _register() -> None:
    """Define the operators, once in a process."""
    if _library:
        return
    library = torch.library.Library("xla", "FRAGMENT")
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, _FUNCTIONS[name], "CompositeImplicitAutograd")
    _library.append(library)


def _flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, casual: bool = False
) -> torch.Tensor:
    from torch_xla.experimental.custom_kernel import flash_attention

    return flash_attention(q, k, v, casual)


def _names(text: str) -> tuple[str, ...] | None:
    """Of `"('x', 'y')"` or `"(x, y)"` the names; None of a text without one."""
    return tuple(re.findall(r"[\w.-]+", text)) or None


_FUNCTIONS = {
    "dynamo_mark_sharding": dynamo_mark_sharding,
    "dynamo_set_buffer_donor_": dynamo_set_buffer_donor_,
    "flash_attention": _flash_attention,
}
