"""Donation of named arguments: a call may take their memory, though its caller holds the tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from torch_pjrt.extend import buffer_of, donate, is_pjrt
from torch_pjrt.extend.padding import is_padded


def positions_of(module: torch.fx.GraphModule, names: Collection[str]) -> list[int]:
    """Which inputs of what Dynamo traced come from the arguments of these names, or lie within them."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [i for i, node in enumerate(inputs) if _argument_of(node) in names]


def _argument_of(node: torch.fx.Node) -> str | None:
    """The argument of the user's function that the input is, or lies within."""
    source = getattr(node, "_dynamo_source", None)
    if source is None:
        source = getattr(node.meta.get("grapharg"), "source", None)
    while hasattr(source, "base"):
        source = source.base  # pyright: ignore[reportOptionalMemberAccess]
    return getattr(source, "local_name", None)


def donating(compiled: Callable[..., Any], positions: Sequence[int]) -> Callable[..., Any]:
    """The function, which takes the memory of its arguments at these positions."""

    def call(*args: Any) -> Any:
        given = [x for i in positions if is_pjrt(x := args[i]) and not is_padded(buffer_of(x))]
        # What the call writes to is its result: its old memory is taken anyway.
        before = [id(buffer_of(x).value) for x in given]
        results = compiled(*args)
        read = [
            x for x, value in zip(given, before, strict=True) if id(buffer_of(x).value) == value
        ]
        donate(read, results, "a compiled function")
        return results

    return call
