"""`optimizer.step()` behind `loss.backward()` in a compiled function is recorded as it is without a compiler.

Traced, the numbers of an optimizer are constants of the graph: a schedule has Dynamo trace the step anew for
each learning rate, until it gives up. It takes as long for a step as for the model before it, too. Recorded,
numbers are inputs, and the step is still part of the one program. An optimizer whose `lr` is a tensor, as
PyTorch advises for compiled ones, is traced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import SkipFunctionVariable
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch.optim import Optimizer

from torch_pjrt.extend import is_pjrt, keep_dynamo_out_of_calls

_WHY = "a step of an optimizer on pjrt is recorded as it is without a compiler"


def record_steps() -> None:
    """From now on, let Dynamo leave such steps to the tape. Call before it traces."""
    original = OptimizerVariable.var_getattr
    if hasattr(original, "before"):
        return

    def var_getattr(self: OptimizerVariable, tx: Any, name: str) -> Any:
        if (
            name == "step"
            and self.source is not None
            and _may_end_here(tx)
            and is_recorded(self.value)
        ):
            return SkipFunctionVariable(self.value.step, _WHY, source=AttrSource(self.source, name))
        return original(self, tx, name)

    var_getattr.before = original  # type: ignore[attr-defined]
    OptimizerVariable.var_getattr = var_getattr
    # PyTorch puts the same function around the method `step` of each class.
    around: Any = Optimizer.profile_hook_step(_take_no_step)
    keep_dynamo_out_of_calls(around, _is_of_the_device)


def _take_no_step(optimizer: Optimizer) -> None:
    """A step of no optimizer."""


def is_recorded(optimizer: Optimizer) -> bool:
    """Whether all of its parameters are on the device, and it was not made to be compiled."""
    groups = optimizer.param_groups
    return all(is_pjrt(p) for group in groups for p in group["params"]) and not any(
        isinstance(group.get("lr"), torch.Tensor) for group in groups
    )


def _is_of_the_device(names: Mapping[str, Any]) -> bool:
    match names.get("args"):
        case [Optimizer() as optimizer, *_]:
            return is_recorded(optimizer)
    return False


def _may_end_here(tx: Any) -> bool:
    """Whether the graph may end, and it is not the function's first or has nothing in it.

    To end a graph has Dynamo trace again what is before: behind `loss.backward()` next to nothing is.
    """
    root = tx.output.root_tx
    return (
        not tx.error_on_graph_break
        and root.should_compile_partial_graph()
        and (
            root.f_code.co_name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX)
            or not any(n.op not in ("placeholder", "get_attr") for n in tx.output.graph.nodes)
        )
    )
