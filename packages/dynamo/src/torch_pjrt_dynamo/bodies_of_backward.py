"""Bodies of backward scans that return no input of theirs, which some versions of PyTorch refuse.

What forward's body computes and backward's only hands on, as the zero gradient of a state that nothing
depends on, is an input and a result of the latter. PyTorch 2.11 writes such bodies and says of them "scan
might be aliasing the input or the output"; here such results are copies, of which XLA makes none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._higher_order_ops import partitioner
from torch.fx import GraphModule

from torch_pjrt.extend import StandIn
from torch_pjrt.plugin import aten


def _partitioned(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    graphs = original(*args, **kwargs)
    copy_inputs_among_results(graphs.bw_gm)
    return graphs


_copying = StandIn(
    getattr(partitioner, "HopGraphMinCutPartitioner", None),
    "create_partitioned_graph",
    _partitioned,
)


def copying_what_is_handed_on() -> AbstractContextManager[None]:
    """Has PyTorch write backward's bodies so, while graphs are traced on this thread."""
    return _copying.in_force()


def copy_inputs_among_results(module: GraphModule) -> None:
    """Copy what a graph returns of its inputs, in place."""
    output = module.graph.output_node()
    results: Any = output.args[0]
    with module.graph.inserting_before(output):
        output.args = (tuple(map(_copied, results)),)
    module.recompile()


def _copied(result: Any) -> Any:
    if not isinstance(result, torch.fx.Node) or result.op != "placeholder":
        return result
    if not isinstance(value := result.meta.get("val"), torch.Tensor):
        return result
    copy = result.graph.call_function(aten.clone.default, (result,))
    copy.meta["val"] = value.clone()
    return copy
