"""Graphs on both the host and the device: each result is where PyTorch traced it.

Such a graph is computed on the device as a whole. What a caller gets on the host is brought there; what
forward keeps for backward stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_pjrt.extend import is_pjrt

Run = Callable[[list[Any]], list[Any]]


def where_traced(module: torch.fx.GraphModule, run: Run, n_users: int) -> Run:
    """`run`, whose results on the host, of the first `n_users`, are brought there."""
    positions = _on_host(module, n_users)
    return _Brought(run, positions) if positions else run


def _on_host(module: torch.fx.GraphModule, n_users: int) -> list[int]:
    output = next(iter(reversed(module.graph.nodes)))
    results: Sequence[Any] = output.args[0]
    if not isinstance(results, (list, tuple)):
        results = [results]
    traced = [getattr(node, "meta", {}).get("val") for node in results[:n_users]]
    return [
        i for i, x in enumerate(traced) if isinstance(x, torch.Tensor) and x.device.type == "cpu"
    ]


class _Brought:
    """A compiled graph, and the results that it brings to the host."""

    def __init__(self, run: Run, positions: list[int]) -> None:
        self.run = run
        self.positions = positions
        self._boxed_call = True  # AOTAutograd asks for it

    def __call__(self, args: list[Any]) -> list[Any]:
        results = self.run(args)
        for i in self.positions:
            if is_pjrt(results[i]):
                results[i] = results[i].cpu()
        return results
