"""A graph is made before it is read, prints as people read it, and is read back as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torch_pjrt.errors import InvalidGraph
from torch_pjrt.graph.graph import Graph, Number, graph_of, with_inputs
from torch_pjrt.graph.signature import NumberSlot, Slot, intern
from torch_pjrt.graph.tape import Tape, Value
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.graph.text import text
from torch_pjrt.testing.graphs import parse

WHOLE = """\
i0: float32[2, 3]
i1: int64[]
v0: float32[3, 2] = pjrt.read(i0, float32[3, 2] strides [1, 3], 0)
v1: float32[2, 3], v2: int64[2, 3] = aten.sort.default(i0, 1, True)
v3: float32[5, 3] strides [1, 5] = aten.cat.default([i0, v1, i0], dim=0)
v4: float32[5, 3] = aten.mul.Scalar(v3, 0.5)
v5: float32[5, 3] = aten.add.Scalar(v4, float#1)
v6: float32[5, 3] = aten.bernoulli.default(v5)  # draw 0.2
v7: float32[5, 3] = aten.to.dtype(v6, torch.float32, None)
return v7, v0, i1"""


def graph(*lines: str) -> Graph:
    return parse("\n".join(["i0: float32[3]", *lines]))


def test_text_is_one_line_a_node_and_parses_back() -> None:
    assert text(parse(WHOLE)) == WHOLE


def test_verify_gives_the_graph_back() -> None:
    good = parse(WHOLE)

    assert good.verify(after="a-pass") is good


def test_value_that_is_read_before_it_is_made_is_an_error_that_names_the_pass() -> None:
    bad = graph("v1 = aten.exp.default(v0)", "v0 = aten.sin.default(i0)", "return v1")

    with pytest.raises(
        InvalidGraph, match=r"`aten.exp.default` reads the value 0 before.*\n.*`it`"
    ):
        bad.verify(after="it")


def test_input_that_the_graph_does_not_have_is_an_error() -> None:
    with pytest.raises(InvalidGraph, match="reads the value -2 before anything makes it"):
        graph("v0 = aten.exp.default(i1)", "return v0").verify(after="it")


def test_value_that_is_made_twice_is_an_error_that_names_the_pass() -> None:
    bad = graph("v0 = aten.exp.default(i0)", "v0 = aten.sin.default(i0)", "return v0")

    with pytest.raises(InvalidGraph, match=r"`aten.sin.default` makes the value 0, .*\n.*`it`"):
        bad.verify(after="it")


def test_output_that_nothing_makes_is_an_error_that_names_the_pass() -> None:
    with pytest.raises(InvalidGraph, match=r"outputs \[7, 8\] are not made by any node.\n.*`it`"):
        graph("v0 = aten.exp.default(i0)", "return v7, v0, v8").verify(after="it")


@pytest.mark.parametrize(
    "change", [{"inputs": (-1, -1)}, {"inputs": ()}, {"outputs": (0, 1)}], ids=str
)
def test_node_with_a_wrong_number_of_values_is_an_error(change: dict[str, tuple[int, ...]]) -> None:
    good = graph("v0 = aten.exp.default(i0)", "return v0")
    bad = replace(good, nodes=(replace(good.nodes[0], **change),))

    with pytest.raises(InvalidGraph, match=r"`aten.exp.default` has a wrong number[^$]*`it`"):
        bad.verify(after="it")


def test_specs_are_those_of_inputs_and_results() -> None:
    shapes = {value: spec.shape for value, spec in parse(WHOLE).specs().items()}

    assert shapes[-1] == (2, 3)
    assert shapes[-2] == ()
    assert shapes[0] == (3, 2)
    assert shapes[7] == (5, 3)
    assert len(shapes) == 10


def test_renamed_reads_the_new_names_in_nodes_and_outputs() -> None:
    before = graph("v0 = aten.exp.default(i0)", "v1 = aten.sin.default(v0)", "return v0, v1")

    after = graph("v0 = aten.exp.default(i0)", "v1 = aten.sin.default(i0)", "return i0, v1")
    assert before.renamed({0: -1}) == after


def test_number_becomes_an_input_where_it_changes_and_stays_a_constant_elsewhere() -> None:
    constants = graph(
        "v0 = aten.mul.Scalar(i0, 0.5)", "v1 = aten.mul.Scalar(v0, 0.25)", "return v1"
    )

    changed = with_inputs(constants, frozenset({(float, 1), (int, 0)}))

    assert text(changed).splitlines()[1:3] == [
        "v0: float32[3] = aten.mul.Scalar(i0, 0.5)",
        "v1: float32[3] = aten.mul.Scalar(v0, float#1)",
    ]
    assert with_inputs(constants, frozenset()) is constants


def test_tape_becomes_the_graph_of_what_it_recorded() -> None:
    spec = parse("i0: float32[3]\nreturn i0").inputs[0]
    tape = Tape()
    value = Value.of_array(spec, None)  # pyright: ignore[reportArgumentType]
    tape.inputs.append(value)
    scaled = recorded(tape, "mul.Scalar", spec, (Slot(0), NumberSlot(0, float)), -1)
    scaled = recorded(tape, "mul.Scalar", spec, (Slot(0), NumberSlot(0, int)), scaled)
    scaled = recorded(tape, "add.Scalar", spec, (Slot(0), NumberSlot(0, float)), scaled)
    tape.floats += [0.5, 0.25]
    tape.ints += [7]
    drawn = recorded(tape, "bernoulli.default", spec, (Slot(0),), scaled, draw=(0, 3))

    assert text(graph_of(tape, [drawn, -1])) == (
        "i0: float32[3]\n"
        "v0: float32[3] = aten.mul.Scalar(i0, 0.5)\n"
        "v1: float32[3] = aten.mul.Scalar(v0, 7)\n"
        "v2: float32[3] = aten.add.Scalar(v1, 0.25)\n"
        "v3: float32[3] = aten.bernoulli.default(v2)  # draw 0.3\n"
        "return v3, i0"
    )
    assert [n.numbers for n in graph_of(tape, [drawn]).nodes[:3]] == [
        (Number(float, 0, 0.5),),
        (Number(int, 0, 7),),
        (Number(float, 1, 0.25),),
    ]


def recorded(
    tape: Tape,
    name: str,
    spec: TensorSpec,
    args: tuple[object, ...],
    value: int,
    *,
    draw: tuple[int, int] | None = None,
) -> int:
    """Append one operator of one tensor, as a kernel does; the number of its result."""
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload)
    kinds = tuple(a.kind for a in args if isinstance(a, NumberSlot))
    signature = intern(op, args, {}, (spec,), (spec,), kinds, random=draw is not None)
    tape.code += [signature, value, *(draw or ())]
    made = Value(spec, len(tape.values), tape)
    tape.values.append(made)
    return made.number
