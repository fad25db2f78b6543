"""The backend that `torch.compile(backend="pjrt")` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from torch_pjrt.errors import SettingError
from torch_pjrt_dynamo.bucket_sizes import Buckets, buckets_of
from torch_pjrt_dynamo.bucketed import BucketedGraph, varies
from torch_pjrt_dynamo.compiled import CompiledGraph
from torch_pjrt_dynamo.host import for_host, is_on_host
from torch_pjrt_dynamo.lines import name_of
from torch_pjrt_dynamo.partition import USERS, partitioner
from torch_pjrt_dynamo.setup import set_up

_OPTIONS = {"buckets", "memory_budget"}
_ALL = 1 << 30  # results


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

    `options`: `memory_budget`, from 0 to 1 (the default): how much of what forward computes is kept for
    backward; the rest is computed again. `torch_pjrt_dynamo.partitions()` says what is kept. `buckets`: the
    sizes up to which sizes that vary are padded, True (the default) for powers of two, False for one program
    for each size; `torch_pjrt_dynamo.shapes()` says what became of them. Any `mode` is taken: there is
    nothing to choose between.
    """
    set_up()
    aot = _aot_of(**_checked(options or {}))
    if is_on_host(module, example_inputs):
        return for_host(module, example_inputs, aot)
    return aot(module, example_inputs)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(options) - _OPTIONS
    if unknown:
        raise SettingError(
            "The backend `pjrt` of `torch.compile` does not know an option.",
            saw=", ".join(sorted(unknown)),
            expected=" or ".join(sorted(_OPTIONS)),
            hint="`torch_pjrt.compile_options(...)` gives XLA's options for a block",
        )
    budget = options.get("memory_budget", 1.0)
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget <= 1:
        raise SettingError(
            "`memory_budget` cannot be that.", saw=repr(budget), expected="a number from 0 to 1"
        )
    return {
        "memory_budget": float(budget),
        "buckets": buckets_of(options.get("buckets", True)),
    }


def _compiler(
    kind: str, buckets: Buckets | None, *, apart: bool = False
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], CompiledGraph]:
    def compile_graph(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        name = name_of(module, kind)
        if buckets is None or not varies(module):
            return CompiledGraph(module, name, apart=apart)
        n_users = 0 if kind == "backward" else module.meta.get(USERS, _ALL)
        return BucketedGraph(module, name, apart=apart, buckets=buckets, n_users=n_users)

    return compile_graph


@cache
def _aot_of(memory_budget: float, buckets: Buckets | None) -> Any:
    return aot_autograd(
        fw_compiler=_compiler("forward", buckets),
        bw_compiler=_compiler("backward", buckets, apart=memory_budget < 1),
        inference_compiler=_compiler("graph", buckets),
        partition_fn=partitioner(memory_budget),
        keep_inference_input_mutations=True,
    )
