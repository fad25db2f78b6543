"""Views as what they are views of: which part of a base each part of a view is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_pjrt_spmd.autoshard.letters import Dims
from torch_pjrt_spmd.autoshard.operators import Operator, Operators
from torch_pjrt_spmd.autoshard.specs import Layout

Way = tuple[int, ...]  # of each atom of a value that of its base, or -1


@dataclass(frozen=True, slots=True, eq=False)
class Views:
    """Of each value its base, which may be itself, and the base's atoms in the place of its own."""

    base: Mapping[int, int]
    ways: Mapping[int, Way]

    def on_base(self, layout: Layout, value: int) -> Layout:
        """How the base lies where a value lies so."""
        way = self.ways[value]
        return tuple(-1 if atom < 0 else way[atom] for atom in layout)

    def on_view(self, layout: Layout, value: int) -> Layout:
        """How a value lies where its base lies so; whole, along axes whose part of the base it has not."""
        way = self.ways[value]
        return tuple(way.index(atom) if atom >= 0 and atom in way else -1 for atom in layout)


def is_view(op: Operator) -> bool:
    """Whether the operator's result is a part of its one input, seen otherwise."""
    return op.letters.is_view and len(op.inputs) == 1 and len(op.outputs) == 1


def views_of(operators: Operators, n_inputs: int) -> Views:
    """Those of a graph."""
    base = {-i - 1: -i - 1 for i in range(n_inputs)}
    ways = {v: _own(operators, v) for v in base}
    for op in operators.all:
        if not is_view(op):
            for v in op.outputs:
                base[v], ways[v] = v, _own(operators, v)
            continue
        [source], [made] = op.inputs, op.outputs
        base[made] = base[source]
        flat = _flat(op.letters.inputs[0])
        of_base = ways[source]
        ways[made] = tuple(
            of_base[flat.index(x)] if x in flat and x not in op.letters.whole else -1
            for x in _flat(op.letters.outputs[0])
        )
    return Views(base, ways)


def _own(operators: Operators, value: int) -> Way:
    return tuple(range(sum(map(len, operators.atoms[value]))))


def _flat(dims: Dims) -> list[int]:
    return [x for d in dims for x in d]
