"""PyTorch's functions of scores as graphs: recorded once for a block, and a part of what JAX traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import torch

from torch_pjrt.extend import (
    Tape,
    Value,
    graph_of,
    is_pjrt,
    number_on,
    onto,
    traced,
    value_of,
    wrap,
)
from torch_pjrt.plugin import Graph, TensorSpec, contiguous_spec

Tensor = torch.Tensor
Array = jax.Array


class Recorded(NamedTuple):
    """A function of a block: its graph, and the values that it reads after what it is called with.

    The graph's inputs are those of the block, tensors that the function captured, and constants.
    """

    graph: Graph
    read: list[Value]

    def is_identity(self) -> bool:
        """Whether it gives its first input."""
        return self.graph.outputs == (-1,)


def recorded(
    function: Callable[..., Any], of_block: Sequence[TensorSpec], captured: Sequence[Any]
) -> Recorded:
    """What `function` computes of tensors that look so, and of captured tensors or numbers.

    Results that are None are left out.
    """
    scratch = Tape(nested=True)
    with torch.no_grad(), onto(scratch):
        given = [_input(scratch, spec) for spec in of_block]
        tensors = [x for x in captured if isinstance(x, Tensor)]
        inputs = iter([_input(scratch, _spec_of(x)) for x in tensors])
        rest = [next(inputs) if isinstance(x, Tensor) else x for x in captured]
        n_given = len(scratch.inputs)
        results = function(*given, *rest)
        if isinstance(results, Tensor):
            results = (results,)
        outputs = [number_on(scratch, value_of(_here(x))) for x in results if x is not None]
    read = [*(value_of(_here(x)) for x in tensors), *scratch.inputs[n_given:]]
    return Recorded(graph_of(scratch, outputs), read)


def as_jax(graph: Graph | None, read: Sequence[Array]) -> Callable[..., Any] | None:
    """The function of the block's arrays that a graph with one result is, in a rule; None for None."""
    if graph is None:
        return None
    return lambda *of_block: traced(graph, (*of_block, *read))[0]


def all_as_jax(graph: Graph, read: Sequence[Array]) -> Callable[..., tuple[Array, ...]]:
    """The same with all results."""
    return lambda *of_block: traced(graph, (*of_block, *read))


def modified(function: Callable[..., Any], n_captured: int) -> Callable[..., Any]:
    """A `score_mod` on a block of scores: PyTorch writes it for one."""
    return _over_block(function, (0,), (None,) * n_captured)


def masked(function: Callable[..., Any], n_captured: int) -> Callable[..., Any]:
    """A `mask_mod` on a block."""
    return _over_block(function, (), (None,) * n_captured)


def pulled_back(joint: Callable[..., Any], wanted: Sequence[bool]) -> Callable[..., Any]:
    """The gradient of a `score_mod` on a block, by PyTorch's graph of it: that of the scores, and of what was
    captured where it is wanted.
    """
    n = len(wanted)
    out_dims: list[int | None] = [0, *(None,) * (4 + n)]
    over = _over_block(joint, (0,), (0, *(None,) * n), out_dims=out_dims)

    def gradients(*given: Any) -> list[Any]:
        of_scores, _, _, _, _, *of_captured = over(*given)
        return [of_scores, *(x for x, w in zip(of_captured, wanted, strict=True) if w)]

    return gradients


def _over_block(
    function: Callable[..., Any], first: tuple[int, ...], last: tuple[Any, ...], **options: Any
) -> Callable[..., Any]:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    over: Callable[..., Any] = _vmap_for_bhqkv(function, prefix=first, suffix=last, **options)

    def called(*given: Any) -> Any:
        with TransformGetItemToIndex():  # `table[head]` with a tensor that is under `vmap`
            return over(*given)

    return called


def _input(scratch: Tape, spec: TensorSpec) -> Tensor:
    value = Value(spec, 0, None)
    scratch.take(value)
    return wrap(value, spec)


def _spec_of(tensor: Tensor) -> TensorSpec:
    return contiguous_spec(tuple(tensor.shape), tensor.dtype)


def _here(tensor: Tensor) -> Tensor:
    return tensor if is_pjrt(tensor) else tensor.to("pjrt")
