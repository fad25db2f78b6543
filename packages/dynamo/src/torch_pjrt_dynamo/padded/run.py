"""A graph of operators on tensors with padding, node after node, while it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import sympy
import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torch_pjrt.extend import buffer_of
from torch_pjrt.extend.padding import Dim, Sized, Unsuited, leaves
from torch_pjrt_dynamo.lines import LinedCode, line_of
from torch_pjrt_dynamo.operators import CannotRecord
from torch_pjrt_dynamo.padded.bounds import check_indices
from torch_pjrt_dynamo.padded.dims import one_of_each, true_size
from torch_pjrt_dynamo.padded.rules import rule_of
from torch_pjrt_dynamo.padded.sized import NodeCall, Size, Sizes
from torch_pjrt_dynamo.recording import computed


class PaddedRun:
    """Runs a graph on tensors with padding.

    dims        of each argument that is a tensor; None for others.
    symbols     of the sizes whose true numbers come after the arguments, in order.
    capacities  of each symbol.
    results     after the run: of each result its dims, the expression of a number, or None.
    """

    def __init__(
        self,
        dims: Sequence[tuple[Dim, ...] | None],
        symbols: Sequence[sympy.Symbol],
        capacities: dict[sympy.Symbol, int],
        n_users: int,
    ) -> None:
        self.dims = dims
        self.symbols = symbols
        self.capacities = capacities
        self.n_users = n_users
        self.results: list[Any] = []

    def __call__(self, module: GraphModule, tensors: Sequence[Any], code: LinedCode) -> list[Any]:
        """The results, with padding."""
        n = len(tensors) - len(self.symbols)
        sizes = Sizes(self.capacities, dict(zip(self.symbols, tensors[n:], strict=True)))
        environment: dict[Node, Any] = {}
        given = iter(zip(tensors, self.dims, strict=False))
        for node in module.graph.nodes:
            if node.op == "placeholder":
                x, dims = next(given)
                environment[node] = _argument(node, x, dims)
            elif node.op == "output":
                return self._results(node, environment, tensors[:n])
            else:
                with code.at(line_of(node)):
                    environment[node] = _done(module, node, environment, sizes)
        raise AssertionError("a graph without an output")

    def _results(
        self, output: Node, environment: dict[Node, Any], given: Sequence[Any]
    ) -> list[Any]:
        results = map_arg(output.args[0], environment.__getitem__)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        arguments = {id(x) for x in given}
        behind = {
            id(buffer_of(x))
            for x, dims in zip(given, self.dims, strict=True)
            if isinstance(x, torch.Tensor) and dims is not None
        }
        made = []
        for position, x in enumerate(results):
            if isinstance(x, Size):
                self.results.append(x.expr)
                made.append(None)
                continue
            if not isinstance(x, Sized):
                self.results.append(None)
                made.append(x)
                continue
            tensor = x.tensor
            shares = x.is_padded or id(buffer_of(tensor)) in behind
            if shares and position >= self.n_users and id(tensor) not in arguments:
                tensor = tensor.clone(memory_format=torch.contiguous_format)
            self.results.append(x.dims if x.is_padded else None)
            made.append(tensor)
        return made


def _argument(node: Node, x: Any, dims: tuple[Dim, ...] | None) -> Any:
    if isinstance(x, torch.Tensor):
        return Sized(x, one_of_each(x) if dims is None else dims)
    value = node.meta.get("val")
    return Size(value.node.expr) if _is_symbolic(value) else x


def _is_symbolic(value: Any) -> TypeGuard[torch.SymInt | torch.SymFloat]:
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat))
    return symbolic and bool(value.node.expr.free_symbols)


def _done(module: GraphModule, node: Node, environment: dict[Node, Any], sizes: Sizes) -> Any:
    """One node. What its rule cannot do says so, with the line that it comes from."""
    try:
        return _node(module, node, environment, sizes)
    except CannotRecord:
        raise
    except Exception as error:
        line = line_of(node)
        what = error if isinstance(error, Unsuited) else f"{type(error).__name__}: {error}"
        at = "" if line is None else f" at {line}"
        raise Unsuited(f"of `{node.target}`{at}: {what}") from error


def _node(module: GraphModule, node: Node, environment: dict[Node, Any], sizes: Sizes) -> Any:
    traced = node.meta.get("val")
    if _is_symbolic(traced):
        return Size(traced.node.expr)
    if isinstance(traced, torch.SymBool):
        raise Unsuited("it depends on a comparison of sizes that vary")
    args, kwargs = map_arg((node.args, node.kwargs), environment.__getitem__)
    if not any(map(_varies, leaves([args, list(kwargs.values())]))):
        plain = {n: _plain(environment[n]) for n in node.all_input_nodes}
        return _exact(computed(module, node, plain))
    rule = rule_of(node.target)
    if not isinstance(node.target, OpOverload):
        if isinstance(node.target, HigherOrderOperator):
            raise Unsuited("control flow")
        return node.target(*args, **kwargs)  # `getitem`  # pyright: ignore[reportCallIssue]
    if rule is None:
        raise Unsuited("there is no rule for it")
    call = NodeCall(node.target, _by_name(node.target, args, kwargs), sizes, traced)
    check_indices(call)
    made = rule(call)
    _check(made, traced)
    return made


def _varies(x: Any) -> bool:
    return isinstance(x, Size) or (isinstance(x, Sized) and x.is_padded)


def _plain(x: Any) -> Any:
    if isinstance(x, Sized):
        return x.tensor
    return [_plain(i) for i in x] if isinstance(x, (list, tuple)) else x


def _exact(x: Any) -> Any:
    """A result without padding."""
    if isinstance(x, torch.Tensor):
        return Sized(x, one_of_each(x))
    return [_exact(i) for i in x] if isinstance(x, (list, tuple)) else x


def _by_name(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = op._schema.arguments
    given = dict(zip([a.name for a in arguments if not a.kwarg_only], args, strict=False))
    given.update(kwargs)
    return {a.name: given.get(a.name, a.default_value) for a in arguments}


def _check(made: Any, traced: Any) -> None:
    """Raises `Unsuited` unless the true sizes of the results are those that PyTorch traced."""
    if isinstance(made, (list, tuple)):
        for x, t in zip(made, traced, strict=True):
            _check(x, t)
    elif isinstance(made, Sized):
        claimed = [sympy.expand(true_size(dim)) for dim in made.dims]
        known = [
            n.node.expr if isinstance(n, torch.SymInt) else sympy.Integer(n) for n in traced.shape
        ]
        if claimed != [sympy.expand(n) for n in known]:
            raise Unsuited(f"a result of size {claimed} should have been {known}")
        if made.tensor.dtype != traced.dtype:
            raise Unsuited(f"a result is {made.tensor.dtype}, not {traced.dtype}")
