"""The operators of a recorded graph with the letters of their dims, each kind traced by JAX once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_pjrt.extend import jax_dtype, traced, x64
from torch_pjrt.plugin import Graph, Node, TensorSpec
from torch_pjrt_spmd.autoshard.jaxpr_steps import steps_of
from torch_pjrt_spmd.autoshard.letters import AllCuts, Letters, cuts_through, letters_of
from torch_pjrt_spmd.autoshard.pieces import Piece, pieces_of
from torch_pjrt_spmd.cuts import NOWHERE, Cuts, joined, sizes

if TYPE_CHECKING:
    Value = int

_MOST_WALKS = (
    12  # until cuts are where they will be; each finds those that one more reshape hands on
)


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator of the graph, or one of the parts that stand beside each other in it.

    inputs, outputs   values, by the places of the piece. number: of its kind, equal for equal ones.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    piece: Piece
    number: int
    line: str | None
    letters: Letters


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """Those of a graph, in its order.

    specs   of each value. atoms: of each value the sizes of what each of its dims is made of.
    """

    all: tuple[Operator, ...]
    specs: dict[Value, TensorSpec]
    atoms: dict[Value, tuple[tuple[int, ...], ...]]


def operators_of(graph: Graph) -> Operators:
    """Those of the graph that something reads."""
    specs = graph.specs()
    bare = _bare(graph)
    cuts = _all_cuts(bare, specs)
    known: dict[Any, Letters] = {}
    found = []
    for op in bare:
        of_inputs, of_outputs = _cuts_of(op, cuts)
        key = (op.number, of_inputs, of_outputs)
        if key not in known:
            [all_cuts] = cuts_through(op.piece.steps, of_inputs, of_outputs)
            known[key] = _agreeing(letters_of(op.piece.steps, all_cuts), op, cuts, specs)
        found.append(replace(op, letters=known[key]))
    atoms = {v: _atoms(spec, cuts[v]) for v, spec in specs.items()}
    return Operators(tuple(found), specs, atoms)


_NO_LETTERS = Letters((), frozenset(), (), (), (), (), False, False, False, ())


def _bare(graph: Graph) -> list[Operator]:
    """The operators, without letters yet."""
    by_signature: dict[int, list[tuple[Piece, int]]] = {}
    numbers: dict[Any, int] = {}
    found: list[Operator] = []
    for node in graph.nodes:
        number = node.signature.number
        if number not in by_signature:
            pieces = pieces_of(_steps(node))
            by_signature[number] = [(p, numbers.setdefault(p.key, len(numbers))) for p in pieces]
        for piece, kind in by_signature[number]:
            found.append(
                Operator(
                    str(node.op),
                    tuple(node.inputs[i] for i in piece.inputs),
                    tuple(node.outputs[i] for i in piece.outputs),
                    piece,
                    kind,
                    None if node.line is None else str(node.line),
                    _NO_LETTERS,
                )
            )
    return found


def _steps(node: Node) -> Any:
    """The node's equations, as JAX traces them."""
    import jax

    alone = replace(
        node,
        inputs=tuple(-i - 1 for i in range(len(node.inputs))),
        outputs=tuple(range(len(node.outputs))),
    )
    graph = Graph(node.signature.specs, (alone,), alone.outputs)
    with x64():
        shapes = [jax.ShapeDtypeStruct(tuple(s.shape), jax_dtype(s.dtype)) for s in graph.inputs]
        closed = jax.make_jaxpr(lambda *arrays: traced(graph, arrays, lambda _: jax.random.key(0)))(
            *shapes
        )
    return steps_of(closed)


def _all_cuts(
    operators: Sequence[Operator], specs: dict[Value, TensorSpec]
) -> dict[Value, tuple[Cuts, ...]]:
    """Of each value where its dims are cut, because it is made of other dims or others are made of it."""
    cuts: dict[Value, tuple[Cuts, ...]] = {v: (NOWHERE,) * len(s.shape) for v, s in specs.items()}
    known: dict[Any, tuple[AllCuts, AllCuts]] = {}
    for walk in range(_MOST_WALKS):
        changed = False
        for op in operators if walk % 2 == 0 else reversed(operators):
            of_inputs, of_outputs = _cuts_of(op, cuts)
            key = (op.number, of_inputs, of_outputs)
            if key not in known:
                [found] = cuts_through(op.piece.steps, of_inputs, of_outputs)
                known[key] = (
                    tuple(tuple(found[n]) for n in op.piece.steps.inputs),
                    tuple(() if n is None else tuple(found[n]) for n in op.piece.steps.outputs),
                )
            for values, new in zip((op.inputs, op.outputs), known[key], strict=True):
                for value, of_value in zip(values, new, strict=True):
                    if of_value and of_value != cuts[value]:
                        both = tuple(map(joined, cuts[value], of_value))
                        changed |= both != cuts[value]
                        cuts[value] = both
        if not changed and walk:
            break
    return cuts


def _cuts_of(op: Operator, cuts: dict[Value, tuple[Cuts, ...]]) -> tuple[AllCuts, AllCuts]:
    return tuple(cuts[v] for v in op.inputs), tuple(cuts[v] for v in op.outputs)


def _atoms(spec: TensorSpec, cuts: Sequence[Cuts]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(p for p in sizes(n, of_dim) if p != 1)
        for n, of_dim in zip(spec.shape, cuts, strict=True)
    )


def _agreeing(
    letters: Letters,
    op: Operator,
    cuts: dict[Value, tuple[Cuts, ...]],
    specs: dict[Value, TensorSpec],
) -> Letters:
    """With letters whole whose sizes are not what the values' dims are cut into."""
    whole = set(letters.whole)
    for values, all_dims in ((op.inputs, letters.inputs), (op.outputs, letters.outputs)):
        for value, dims in zip(values, all_dims, strict=True):
            if not dims:
                continue
            wanted = _atoms(specs[value], cuts[value])
            for of_dim, sizes_wanted in zip(dims, wanted, strict=True):
                if tuple(letters.sizes[x] for x in of_dim) != sizes_wanted:
                    whole.update(of_dim)
    return replace(letters, whole=frozenset(whole))
