"""What forward keeps for backward, and what backward computes again, by PyTorch's partitioner."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._functorch import config, partitioners
from torch._functorch.partitioners import must_recompute
from torch.fx import GraphModule
from torch.utils.checkpoint import CheckpointPolicy

from torch_pjrt.extend import StandIn, computed_again
from torch_pjrt_dynamo.lines import name_of
from torch_pjrt_dynamo.shared_keys import draws, share_keys


@dataclass(frozen=True, slots=True)
class Partition:
    """What one forward keeps.

    name      of the compiled graph.
    budget    how much it may keep, from 0 (its inputs) to 1 (what is not cheap to compute again, or what
              PyTorch keeps without a compiler).
    kept      of each tensor beside inputs and results: the operator that makes it, its shape, its bytes.
    """

    name: str
    budget: float
    kept: tuple[tuple[str, tuple[int, ...], int], ...]

    @property
    def kept_bytes(self) -> int:
        return sum(n for _, _, n in self.kept)

    def __str__(self) -> str:
        lines = [
            f"{self.name} keeps {len(self.kept)} tensors, {self.kept_bytes} bytes, for backward"
        ]
        lines += [f"  {n:12d}  {made}{list(shape)}" for made, shape, n in self.kept]
        return "\n".join(lines)


# Of a forward's module, in its `meta`: how many of its results are not for its backward.
USERS = "torch_pjrt_users"

_recent: deque[Partition] = deque(maxlen=100)


def partitions() -> list[Partition]:
    """Of the last hundred graphs that were compiled with a backward; print them."""
    return list(_recent)


def note(partition: Partition) -> None:
    """Have `partitions()` list it."""
    _recent.append(partition)


def partitioner(budget: float) -> Callable[..., tuple[GraphModule, GraphModule]]:
    """PyTorch's min-cut partitioner within a budget of memory."""

    def partition(
        joint: GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, **how: Any
    ) -> tuple[GraphModule, GraphModule]:
        share_keys(joint, computes_again=budget < 1)
        _keep_what_is_drawn(joint)
        _compute_annotated_again(joint)
        within = config.patch(activation_memory_budget=budget)
        with (
            within,
            _without_states_of_generators.in_force(),
            _keeping_what_is_drawn.in_force(),
        ):
            forward, backward = min_cut_rematerialization_partition(
                joint, inputs, num_fwd_outputs=num_fwd_outputs, **how
            )
        _annotate_what_is_computed_again(backward)
        forward.meta[USERS] = num_fwd_outputs
        output = next(iter(reversed(forward.graph.nodes)))
        kept = [n for n in output.args[0][num_fwd_outputs:] if _is_made(n)]
        note(Partition(name_of(forward, "forward"), budget, tuple(map(_described, kept))))
        return forward, backward

    return partition


def _keep_what_is_drawn(joint: GraphModule) -> None:
    """In checkpointed parts random numbers are drawn once and kept for backward, not drawn again.

    PyTorch would save and restore the state of the generator around the operators, which a compiled graph
    is only given.
    """
    for node in joint.graph.nodes:
        if must_recompute(node) and draws(node):
            for kept in (node, *_elements(node)):
                kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _compute_annotated_again(joint: GraphModule) -> None:
    """Values whose annotation says so are not kept for backward."""
    for node in joint.graph.nodes:
        if computed_again(node.target, node.args) is not None:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _annotate_what_is_computed_again(backward: GraphModule) -> None:
    """Where backward computes such a value, its input is annotated as its kind asks; in place."""
    for node in list(backward.graph.nodes):
        kind = computed_again(node.target, node.args)
        if kind is not None:
            with backward.graph.inserting_before(node):
                again = backward.graph.call_function(node.target, (node.args[0], kind, "()"))
            again.meta = dict(node.args[0].meta)
            node.replace_input_with(node.args[0], again)
    backward.recompile()


def _choose(
    original: Callable[..., Any], graph: torch.fx.Graph, known: Any, *args: Any, **kwargs: Any
) -> list[torch.fx.Node]:
    """What forward keeps, and all random numbers, whatever the budget: PyTorch would draw others again."""
    drawn = [n for n in graph.nodes if draws(n) and known.is_required_fw(n)]
    kept = [n for n in original(graph, known, *args, **kwargs) if n not in drawn]
    tensors = [t for n in drawn for t in (_elements(n) or [n])]
    return [*kept, *(t for t in tensors if t not in kept)]


_keeping_what_is_drawn = StandIn(partitioners, "choose_saved_values_set", _choose)
# The partitioner takes what is left to compute again for what it is: not random.
_without_states_of_generators = StandIn(
    partitioners, "has_recomputable_rng_ops", lambda original, graph: False
)


def _elements(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What is taken out of an operator's several results."""
    return [user for user in node.users if user.target is operator.getitem]


def _is_made(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and "val" in node.meta


def _described(node: torch.fx.Node) -> tuple[str, tuple[int, ...], int]:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return str(node.target), (), 0
    shape = tuple(map(_size_at_compilation, value.shape))
    nbytes = math.prod(shape) * value.dtype.itemsize
    return f"{node.name}: {str(value.dtype).removeprefix('torch.')}", shape, nbytes


def _size_at_compilation(size: Any) -> int:
    """A symbolic size as it was at the call that compiled the graph: `int()` would fix it for all.

    0 for one that only values decide, as how many iterations a loop ran.
    """
    return size if isinstance(size, int) else size.node.hint or 0
