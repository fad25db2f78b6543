"""The backend that `torch.compile(backend="pjrt")` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from torch_pjrt_dynamo.compiled import CompiledGraph
from torch_pjrt_dynamo.host import for_host, is_on_host
from torch_pjrt_dynamo.lines import name_of
from torch_pjrt_dynamo.setup import set_up


def pjrt(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo traced, for tensors on `pjrt`.

    AOTAutograd makes graphs of operators of it, one for forward and one for backward; a call of either
    appends one node to the lazy tape. Nothing is compiled by XLA before a value is needed or a step ends.

    Tensors of the CPU are brought to the device, and the results back.
    """
    set_up()
    if is_on_host(module, example_inputs):
        return for_host(module, example_inputs, _aot)
    return _aot(module, example_inputs)


def _compiler(kind: str) -> Callable[[torch.fx.GraphModule, Sequence[Any]], CompiledGraph]:
    def compile_graph(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        return CompiledGraph(module, name_of(module, kind))

    return compile_graph


_aot = aot_autograd(
    fw_compiler=_compiler("forward"),
    bw_compiler=_compiler("backward"),
    inference_compiler=_compiler("graph"),
    partition_fn=min_cut_rematerialization_partition,
    keep_inference_input_mutations=True,
)
