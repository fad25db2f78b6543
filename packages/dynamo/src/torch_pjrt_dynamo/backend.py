"""The backend that `torch.compile(backend="pjrt")` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as of_functorch

from torch_pjrt_dynamo import fake_products
from torch_pjrt_dynamo.bodies_of_backward import copying_what_is_handed_on
from torch_pjrt_dynamo.bucket_sizes import Buckets
from torch_pjrt_dynamo.bucketed import BucketedGraph, varies
from torch_pjrt_dynamo.calls_of_backward import end_graphs_before_them
from torch_pjrt_dynamo.compiled import CompiledGraph
from torch_pjrt_dynamo.devices_of_results import Run, where_traced
from torch_pjrt_dynamo.direct import simple_graph, without_autograd
from torch_pjrt_dynamo.donation import donating, positions_of
from torch_pjrt_dynamo.gradients import with_gradients
from torch_pjrt_dynamo.host import for_host, is_on_host
from torch_pjrt_dynamo.lines import name_of
from torch_pjrt_dynamo.marks import put_marks
from torch_pjrt_dynamo.options import NAMES, Options, options_of
from torch_pjrt_dynamo.partition import USERS, partitioner
from torch_pjrt_dynamo.setup import leave_inductor_out, set_up
from torch_pjrt_dynamo.shared_keys import share_keys
from torch_pjrt_dynamo.steps_of_optimizers import record_steps

_ALL = 1 << 30  # results

# When `torch.compile` looks for the backend: before it traces.
fake_products.register()
leave_inductor_out()
record_steps()
end_graphs_before_them()


def pjrt(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo traced, for tensors on `pjrt`.

    Simple graphs are recorded as they are; AOTAutograd makes graphs of operators of the others. Either way
    there is one for forward and one for backward, and a call appends one node to the lazy tape. Nothing is
    compiled by XLA before a value is needed or a step ends.

    Tensors of the CPU are brought to the device, and the results back.

    `options`: the fields of `torch_pjrt_dynamo.options.Options`. Any `mode` is taken: there is nothing to
    choose between.
    """
    chosen = options_of(options or {})
    positions = positions_of(module, chosen.donate)
    key: Any = getattr(module, "_backend_id", None)
    if key is None:
        return compiled_with(module, example_inputs, chosen, positions)
    # PyTorch may keep what is compiled. Inductor comes with this import, for a second.
    from torch_pjrt_dynamo.kept_graphs import KeptGraph

    kept = KeptGraph.of(module, compiled_with, (chosen, positions))
    # Else AOTAutograd would keep what it makes of the graph, too, which only Inductor's graphs can be.
    with of_functorch.patch(force_autograd_cache=False):
        compiled = compiled_with(module, example_inputs, chosen, positions)
    return kept.running(compiled, key)


def compiled_with(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    chosen: Options,
    positions: Sequence[int],
) -> Callable[..., Any]:
    """What Dynamo traced, compiled with these options; arguments at these positions are donated."""
    set_up()
    put_marks(module)
    budget = 1.0 if chosen.memory_budget is None else chosen.memory_budget
    aot = _aot_of(budget, chosen.buckets, chosen.precision)
    with copying_what_is_handed_on():
        if is_on_host(module, example_inputs):
            return for_host(module, example_inputs, aot)
        compiled = as_traced(module, example_inputs, chosen)
        if compiled is None:
            compiled = aot(module, example_inputs)
    return donating(compiled, positions) if positions else compiled


def as_traced(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], chosen: Options
) -> Callable[..., Any] | None:
    """The graph compiled as Dynamo traced it; None if AOTAutograd is to trace it."""
    simple = simple_graph(module, example_inputs)
    if simple is None:
        return None
    compiled = without_autograd(simple, chosen.precision)
    if compiled is None and chosen.memory_budget is None:
        return with_gradients(simple, chosen.precision)
    return compiled


# Which options are meant for us where no backend is named.
pjrt.option_names = NAMES  # type: ignore[attr-defined]


def _compiler(
    kind: str, buckets: Buckets | None, precision: str | None, *, apart: bool = False
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Run]:
    def compile_graph(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Run:
        name = name_of(module, kind)
        if kind == "graph":  # the others were one until the partitioner had it
            share_keys(module)
        n_users = module.meta.get(USERS, _ALL)
        if buckets is None or not varies(module):
            graph = CompiledGraph(module, name, apart=apart, precision=precision)
        else:
            counted = 0 if kind == "backward" else n_users
            graph = BucketedGraph(
                module, name, apart=apart, precision=precision, buckets=buckets, n_users=counted
            )
        return where_traced(module, graph, n_users)

    return compile_graph


@cache
def _aot_of(memory_budget: float, buckets: Buckets | None, precision: str | None) -> Any:
    return aot_autograd(
        fw_compiler=_compiler("forward", buckets, precision),
        bw_compiler=_compiler("backward", buckets, precision, apart=memory_budget < 1),
        inference_compiler=_compiler("graph", buckets, precision),
        partition_fn=partitioner(memory_budget),
        keep_inference_input_mutations=True,
    )
