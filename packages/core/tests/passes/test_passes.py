"""Passes keep what a graph computes: before and after as text; the runner names the one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from torch_pjrt.errors import DuplicatePass, InvalidGraph
from torch_pjrt.graph.graph import Graph
from torch_pjrt.graph.text import text
from torch_pjrt.passes import (
    CORE_PASSES,
    DropUnused,
    Expand,
    MergeEqual,
    Pass,
    Stage,
    in_order,
    run_passes,
)
from torch_pjrt.testing.graphs import parse


def graph(*lines: str, **expansions: str) -> Graph:
    """A graph of two inputs, `float32[3]` each; underscores stand for dots in names of operators."""
    named = {name.replace("_", "."): body for name, body in expansions.items()}
    return parse("\n".join(["i0: float32[3]", "i1: float32[3]", *lines]), named)


def after(*passes: Pass, of: Graph) -> list[str]:
    """The lines of the graph that these passes make, without the inputs and the specs."""
    made = text(run_passes(passes, of)).replace(": float32[3]", "")
    return made.splitlines()[2:]


# drop-unused


def test_node_that_nothing_reads_is_dropped() -> None:
    before = graph(
        "v0 = aten.exp.default(i0)",
        "v1 = aten.sin.default(v0)",
        "v2 = aten.cos.default(v0)",
        "return v2",
    )

    assert after(DropUnused(), of=before) == [
        "v0 = aten.exp.default(i0)",
        "v2 = aten.cos.default(v0)",
        "return v2",
    ]


def test_chain_that_ends_nowhere_is_dropped_whole() -> None:
    before = graph("v0 = aten.exp.default(i0)", "v1 = aten.sin.default(v0)", "return i1")

    assert after(DropUnused(), of=before) == ["return i1"]


def test_node_with_one_wanted_result_of_two_stays() -> None:
    before = graph("v0, v1 = aten.sort.default(i0, 0, False)", "return v1")

    assert after(DropUnused(), of=before) == [
        "v0, v1 = aten.sort.default(i0, 0, False)",
        "return v1",
    ]


def test_inputs_stay_though_unread() -> None:
    assert run_passes([DropUnused()], graph("return i1")).inputs == graph("return i1").inputs


# merge-equal


def test_equal_nodes_are_merged_and_so_are_their_readers() -> None:
    before = graph(
        "v0 = aten.exp.default(i0)",
        "v1 = aten.exp.default(i0)",
        "v2 = aten.sin.default(v0)",
        "v3 = aten.sin.default(v1)",
        "return v2, v3",
    )

    assert after(MergeEqual(), of=before) == [
        "v0 = aten.exp.default(i0)",
        "v2 = aten.sin.default(v0)",
        "return v2, v2",
    ]


def test_all_results_of_a_merged_node_are_renamed() -> None:
    before = graph(
        "v0, v1 = aten.sort.default(i0, 0, False)",
        "v2, v3 = aten.sort.default(i0, 0, False)",
        "return v3, v2",
    )

    assert after(MergeEqual(), of=before) == [
        "v0, v1 = aten.sort.default(i0, 0, False)",
        "return v1, v0",
    ]


DIFFERENT = {
    "operator": ("aten.exp.default(i0)", "aten.sin.default(i0)"),
    "input": ("aten.exp.default(i0)", "aten.exp.default(i1)"),
    "order of inputs": ("aten.sub.Tensor(i0, i1)", "aten.sub.Tensor(i1, i0)"),
    "static argument": ("aten.roll.default(i0, [1])", "aten.roll.default(i0, [2])"),
    "keyword": ("aten.add.Tensor(i0, i1, alpha=1)", "aten.add.Tensor(i0, i1, alpha=2)"),
    "type of a static": ("aten.mul.Scalar(i0, 1)", "aten.mul.Scalar(i0, True)"),
    "int and float": ("aten.mul.Scalar(i0, 1)", "aten.mul.Scalar(i0, 1.0)"),
    "number": ("aten.mul.Scalar(i0, 0.5)", "aten.mul.Scalar(i0, 0.25)"),
    "sign of zero": ("aten.mul.Scalar(i0, 0.0)", "aten.mul.Scalar(i0, -0.0)"),
    "last bit": ("aten.mul.Scalar(i0, 0.1)", "aten.mul.Scalar(i0, 0.10000000000000002)"),
    "number of the program": ("aten.mul.Scalar(i0, float#0)", "aten.mul.Scalar(i0, float#1)"),
    "constant and input": ("aten.mul.Scalar(i0, 0.5)", "aten.mul.Scalar(i0, float#0)"),
    "random draw": (
        "aten.bernoulli.default(i0)  # draw 0.0",
        "aten.bernoulli.default(i0)  # draw 0.1",
    ),
    "seed": ("aten.bernoulli.default(i0)  # draw 0.0", "aten.bernoulli.default(i0)  # draw 1.0"),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_nodes_that_differ_are_not_merged(pair: tuple[str, str]) -> None:
    lines = [f"v0 = {pair[0]}", f"v1 = {pair[1]}", "return v0, v1"]

    assert after(MergeEqual(), of=graph(*lines)) == lines


SAME = {
    "nan": "aten.mul.Scalar(i0, nan)",
    "constant": "aten.mul.Scalar(i0, 0.5)",
    "number of the program": "aten.mul.Scalar(i0, float#3)",
    "draw": "aten.bernoulli.default(i0)  # draw 0.1",
}


@pytest.mark.parametrize("node", SAME.values(), ids=SAME)
def test_nodes_with_the_same_numbers_and_draw_are_merged(node: str) -> None:
    before = graph(f"v0 = {node}", f"v1 = {node}", "return v0, v1")

    assert after(MergeEqual(), of=before) == [f"v0 = {node}", "return v0, v0"]


# expand


def test_expansion_takes_the_place_of_its_node() -> None:
    square = "i0: float32[3]\nv0 = aten.mul.Tensor(i0, i0)\nreturn v0"
    before = graph(
        "v0 = aten.exp.default(i1)", "v1 = a.square(v0)", "return v1, v0", a_square=square
    )

    assert after(Expand(), of=before) == [
        "v0 = aten.exp.default(i1)",
        "v2 = aten.mul.Tensor(v0, v0)",
        "return v2, v0",
    ]


def test_expansions_of_one_operator_keep_apart() -> None:
    twice = "i0: float32[3]\nv0 = aten.sin.default(i0)\nv1 = aten.cos.default(v0)\nreturn v1"
    before = graph("v0 = a.twice(i0)", "v1 = a.twice(v0)", "return v1", a_twice=twice)

    assert after(Expand(), of=before) == [
        "v2 = aten.sin.default(i0)",
        "v3 = aten.cos.default(v2)",
        "v4 = aten.sin.default(v3)",
        "v5 = aten.cos.default(v4)",
        "return v5",
    ]


def test_expansion_inside_an_expansion_is_expanded() -> None:
    before = graph(
        "v0 = a.outer(i0, i1)",
        "return v0",
        a_outer="i0: float32[3]\ni1: float32[3]\n"
        "v0 = a.inner(i1)\nv1 = aten.add.Tensor(v0, i0)\nreturn v1",
        a_inner="i0: float32[3]\nv0 = aten.exp.default(i0)\nreturn v0",
    )

    made = after(Expand(), of=before)

    first, second, last = (line.split(" = ") for line in made)
    assert first[1] == "aten.exp.default(i1)"
    assert second[1] == f"aten.add.Tensor({first[0]}, i0)"
    assert last == [f"return {second[0]}"]


def test_expansion_may_return_its_inputs_and_a_value_twice() -> None:
    swap = "i0: float32[3]\ni1: float32[3]\nv0 = aten.exp.default(i0)\nreturn i1, v0, v0"
    before = graph("v0, v1, v2 = a.swap(i0, i1)", "return v2, v1, v0", a_swap=swap)

    assert after(Expand(), of=before) == ["v3 = aten.exp.default(i0)", "return v3, v3, i1"]


def test_graph_without_expansions_is_given_back_as_it_is() -> None:
    same = graph("v0 = aten.exp.default(i0)", "return v0")

    assert Expand()(same) is same


def test_core_passes_merge_what_expansions_have_in_common_and_drop_the_rest() -> None:
    both = (
        "i0: float32[3]\nv0 = aten.exp.default(i0)\nv1 = aten.sin.default(v0)\n"
        "v2 = aten.cos.default(v0)\nreturn v1, v2"
    )
    before = graph(
        "v0, v1 = a.both(i0)", "v2, v3 = a.both(i0)", "v4 = aten.add.Tensor(v0, v2)", "return v4",
        a_both=both,
    )  # fmt: skip

    assert after(*CORE_PASSES, of=before) == [
        "v5 = aten.exp.default(i0)",
        "v6 = aten.sin.default(v5)",
        "v4 = aten.add.Tensor(v6, v6)",
        "return v4",
    ]


# the runner


@dataclass(frozen=True)
class Doing:
    """A pass that does this."""

    do: Callable[[Graph], object]
    name: str = "culprit"
    stage: Stage = Stage.REWRITE

    def __call__(self, graph: Graph) -> Graph:
        return self.do(graph)  # pyright: ignore[reportReturnType]


GOOD = graph("v0 = aten.exp.default(i0)", "v1 = aten.sum.dim_IntList(v0, [0])", "return v0, v1")
WRONG = {
    "reads what is not there": lambda g: replace(g, nodes=g.nodes[1:]),
    "loses an output": lambda g: replace(g, outputs=g.outputs[:1]),
    "adds an output": lambda g: replace(g, outputs=(*g.outputs, -1)),
    "drops an input": lambda g: replace(g, inputs=g.inputs[:1]),
    "returns nothing": lambda g: None,
}


@pytest.mark.parametrize("do", WRONG.values(), ids=WRONG)
def test_wrong_graph_is_an_error_that_names_the_pass(do: Callable[[Graph], object]) -> None:
    with pytest.raises(InvalidGraph, match="`culprit`"):
        run_passes([DropUnused(), Doing(do), MergeEqual()], GOOD)


def test_output_of_another_shape_is_an_error_that_shows_both() -> None:
    looks = parse(
        "i0: float32[3]\nv0: float32[3] = aten.exp.default(i0)\nv1: int64[] = a.count(v0)\nreturn v0, v1"
    )
    swapped = Doing(lambda g: replace(g, outputs=g.outputs[::-1]))

    with pytest.raises(
        InvalidGraph,
        match=r"saw: int64\[\], float32\[3\]\n  expected: float32\[3\], int64\[\]",
    ):
        run_passes([swapped], looks)


def test_node_that_is_fed_something_else_than_it_takes_is_an_error() -> None:
    looks = parse(
        "i0: float32[3]\ni1: float32[4]\nv0: float32[3] = aten.exp.default(i0)\nreturn v0"
    )
    rewired = Doing(lambda g: replace(g, nodes=(replace(g.nodes[0], inputs=(-2,)),)))

    with pytest.raises(
        InvalidGraph, match=r"`culprit` feeds `aten.exp.default`[^$]*saw: float32\[4\]"
    ):
        run_passes([rewired], looks)


def test_what_a_pass_raises_comes_through_with_its_name() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_passes([Doing(lambda g: 1 / 0)], GOOD)

    assert caught.value.__notes__ == ["raised by the pass `culprit` of torch-pjrt"]


def test_wrong_graph_of_the_tape_is_not_blamed_on_a_pass() -> None:
    with pytest.raises(InvalidGraph, match="the graph that `the tape` returned"):
        run_passes([Doing(lambda g: g)], replace(GOOD, outputs=(9,)))


def test_passes_run_by_stage_and_keep_their_order_within_one() -> None:
    def named(name: str, stage: Stage) -> Pass:
        return Doing(lambda g: g, name, stage)

    passes = [named("a", Stage.CLEAN), named("b", Stage.EXPAND), named("c", Stage.CLEAN)]

    assert [p.name for p in in_order(passes)] == ["b", "a", "c"]


def test_two_passes_of_one_name_are_an_error() -> None:
    with pytest.raises(DuplicatePass, match="`drop-unused`"):
        in_order([DropUnused(), MergeEqual(), DropUnused()])
