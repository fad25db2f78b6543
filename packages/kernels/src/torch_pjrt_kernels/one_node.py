"""Public functions as nodes of compiled functions: Dynamo traces nothing else of a plugin's package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch_pjrt.extend import after_import

Function = TypeVar("Function", bound=Callable[..., object])


def one_node(function: Function) -> Function:
    """A decorator: a call within `torch.compile` is one node of the graph, and breaks none."""
    after_import("torch._dynamo", lambda dynamo: dynamo.allow_in_graph(function))
    return function
