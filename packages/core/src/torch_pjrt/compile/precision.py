"""How exactly products of float32 are computed: `torch.set_float32_matmul_precision` in XLA's words.

A compiled graph may have a precision of its own: then it is part of the signatures of its operators.

XLA knows three precisions of a product or convolution; what each is, is the device's affair: on CPU all are
float32, on GPUs the lower ones allow TF32, on TPUs they are three passes of bfloat16 and one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import torch

from torch_pjrt.graph.graph import Graph, Node
from torch_pjrt.graph.signature import Signature, intern

# PyTorch's name: JAX's.
PRECISIONS = {"highest": "highest", "high": "high", "medium": "default"}

_WIDE = (torch.float32, torch.complex64)

_nothing = nullcontext()

in_force = torch._C._get_float32_matmul_precision


def precision_of(node: Node, name: str) -> AbstractContextManager[Any]:
    """The context in which the node's rule is traced, where the precision in force is `name` (PyTorch's)."""
    if _has_wide(node.signature):
        return jax.default_matmul_precision(PRECISIONS[node.signature.precision or name])
    return _nothing


def with_precision(graph: Graph, name: str) -> Graph:
    """The graph with this precision for its products, whatever is in force.

    name   of PyTorch's, a key of `PRECISIONS`.

        >>> with recorded(torch.mm, [torch.empty(2, 2), torch.empty(2, 2)]) as step:
        ...     graph = graph_of(step.tape, step.outputs)
        >>> [node] = with_precision(graph, "high").nodes
        >>> node.signature.precision, PRECISIONS["high"]
        ('high', 'high')
    """
    nodes = [replace(n, signature=_signature_with(n.signature, name)) for n in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


def _signature_with(s: Signature, name: str) -> Signature:
    inner = s.expansion
    if s.precision is not None or (inner is None and not _has_wide(s)):
        return s
    if inner is None and not isinstance(s.op, torch._ops.OpOverload):
        return s  # no rule is traced for it
    return intern(
        *(s.op, s.args, s.kwargs, s.specs, s.outs, s.numbers),
        random=s.random,
        returns=s.returns,
        dropped=s.dropped,
        precision=name,
        default_dtype=s.default_dtype,
        expand=None if inner is None else lambda _: with_precision(inner, name),
    )


def _has_wide(signature: Signature) -> bool:
    return any(spec.dtype in _WIDE for spec in signature.specs)
