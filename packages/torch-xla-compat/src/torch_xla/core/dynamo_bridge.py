"""What PyTorch's backend `openxla` of `torch.compile` asks for: the backend `pjrt` of torch-pjrt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def extract_compiled_graph(
    xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]
) -> Callable[..., Any]:
    """The graph, of operators of aten, as a function that runs it as a part of what is recorded.

    PyTorch calls it with what AOTAutograd has made of the program. The function records the graph's operators
    each time; `torch.compile(backend="pjrt")` records one node.
    """
    return xla_model.forward
