"""Functions of a StableHLO module written where they are called, as XLA does later.

MLIR's own pass for it does nothing to functions in the build of MLIR that JAX has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend.mlir import ir

from torch_pjrt.plugin import each_operation

Operation = Any

_ATTRIBUTES = ("arg_attrs", "res_attrs")  # of parameters and results


def inline(module: Any, is_wanted: Callable[[Operation], bool]) -> None:
    """Replace calls by the operators of what they call, also where these come from such a call."""
    functions = {
        function.attributes["sym_name"].value: function.operation
        for function in module.body.operations
        if function.operation.name == "func.func"
    }
    calls = list(_calls(module.operation))
    while calls:
        call = calls.pop()
        function = functions[call.attributes["callee"].value]
        if is_wanted(call) and not _has_shardings(function):
            for operation in _put(call, function):
                calls += _calls(operation)
                if operation.name == "func.call":
                    calls.append(operation)


def _calls(root: Operation) -> Iterator[Operation]:
    return (op for op in each_operation(root) if op.name == "func.call")


def _has_shardings(function: Operation) -> bool:
    """Whether its parameters or results are said to lie somewhere, which would be lost."""
    found = [str(function.attributes[name]) for name in _ATTRIBUTES if name in function.attributes]
    return any("sharding" in text for text in found)


def _put(call: Operation, function: Operation) -> Sequence[Operation]:
    copy = function.clone(ir.InsertionPoint(function)).operation
    [block] = copy.regions[0].blocks
    for parameter, given in zip(block.arguments, call.operands, strict=True):
        parameter.replace_all_uses_with(given)
    *body, end = [inner.operation for inner in block.operations]
    for operation in body:
        operation.move_before(call)
    for result, value in zip(call.results, end.operands, strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    copy.erase()
    return body
