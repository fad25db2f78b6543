"""Repetitions are found, wired and written as loops; what does not fit stays as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from torch_pjrt.errors import InvalidGraph
from torch_pjrt.graph.graph import Graph, Node
from torch_pjrt.graph.loop import LoopOp, loops_of
from torch_pjrt.graph.text import text
from torch_pjrt.passes import RollLayers, run_passes
from torch_pjrt.passes.rolling.detection import Repetition, repetitions
from torch_pjrt.settings import settings
from torch_pjrt.testing.graphs import parse


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    before = settings.roll_layers
    settings.roll_layers = "on"
    yield
    settings.roll_layers = before


def rolled(lines: list[str], inputs: int = 1) -> Graph:
    specs = [f"i{i}: float32[3]" for i in range(inputs)]
    return run_passes([RollLayers()], parse("\n".join([*specs, *lines])))


def shown(graph: Graph) -> list[str]:
    """The lines without the inputs and the specs."""
    lines = text(graph).replace(": float32[3]", "").splitlines()
    return [line for line in lines if not line.startswith("i")]


def iteration(read: str, made: int) -> list[str]:
    """Three operators on `read`, which make the values from `made` on."""
    return [
        f"v{made} = aten.sin.default({read})",
        f"v{made + 1} = aten.exp.default(v{made})",
        f"v{made + 2} = aten.cos.default(v{made + 1})",
    ]


def chain(iterations: int) -> list[str]:
    reads = ["i0", *(f"v{3 * i + 2}" for i in range(iterations - 1))]
    return [line for i, read in enumerate(reads) for line in iteration(read, 3 * i)]


# detection


def test_repetition_is_found_with_its_period() -> None:
    found = repetitions([9, 8, *[1, 2, 3] * 4, 1, 7])

    assert found[0] == Repetition(start=2, period=3, length=13)


def test_repetition_within_a_repetition_is_found_too() -> None:
    found = repetitions([1, 1, 1, 1, 2] * 5)

    assert found[0] == Repetition(0, 5, 25)
    assert Repetition(0, 1, 4) in found


def test_two_of_a_kind_are_no_repetition() -> None:
    assert repetitions([1, 2, 3, 1, 2, 3]) == []


@pytest.mark.parametrize("period", [1, 2, 3, 5, 16, 31, 64])
@pytest.mark.parametrize("iterations", [3, 4, 7])
def test_period_of_any_length_is_found(period: int, iterations: int) -> None:
    noise = random.Random(period)
    before, after = ([noise.randrange(1000, 2000) for _ in range(n)] for n in (17, 5))

    found = repetitions([*before, *range(period), *list(range(period)) * (iterations - 1), *after])

    assert Repetition(17, period, period * iterations) in found


def test_nothing_is_found_where_nothing_repeats() -> None:
    assert repetitions(list(range(1000))) == []
    assert repetitions([]) == []


# loops


def test_chain_becomes_a_loop_that_carries_its_value() -> None:
    graph = rolled([*chain(5), "return v14"])

    assert shown(graph) == [
        "v14 = pjrt.loop(i0)  # 5 iterations: 1 carried, 0 consts, 0 xs",
        "    i0",
        "    v0 = aten.sin.default(i0)",
        "    v1 = aten.exp.default(v0)",
        "    v2 = aten.cos.default(v1)",
        "    return v2",
        "return v14",
    ]


def test_what_each_turn_reads_is_stacked_and_what_all_read_is_not() -> None:
    lines = []
    for i in range(5):
        before = f"v{3 * i - 1}" if i else "i0"
        lines += [
            f"v{3 * i} = aten.mul.Tensor({before}, i{i + 2})",
            f"v{3 * i + 1} = aten.add.Tensor(v{3 * i}, i1)",
            f"v{3 * i + 2} = aten.exp.default(v{3 * i + 1})",
        ]

    graph = rolled([*lines, "return v14"], inputs=7)

    assert shown(graph)[:2] == [
        "v15: float32[5, 3] = pjrt.stack([i2, i3, i4, i5, i6])",
        "v14 = pjrt.loop(i0, i1, v15)  # 5 iterations: 1 carried, 1 consts, 1 xs",
    ]


def test_results_that_are_read_outside_are_collected() -> None:
    graph = rolled([*chain(5), "v15 = aten.add.Tensor(v0, v6)", "return v14, v15"])

    lines = shown(graph)
    assert lines[0].startswith("v14, v16: float32[5, 3] = pjrt.loop(i0)")
    assert lines[-3] == "v0, v6 = pjrt.elements(v16, [0, 2])"


def test_inputs_of_the_turns_are_collected_where_they_are_what_is_read() -> None:
    back = []
    for i in range(5):
        before, read = "v14" if not i else f"v{15 + 3 * i - 1}", f"v{3 * (4 - i) - 1}"
        back += [
            f"v{15 + 3 * i} = aten.mul.Tensor({before}, {read if i < 4 else 'i0'})",
            f"v{16 + 3 * i} = aten.neg.default(v{15 + 3 * i})",
            f"v{17 + 3 * i} = aten.abs.default(v{16 + 3 * i})",
        ]

    graph = rolled([*chain(5), *back, "return v29"])

    first, second = loops_of(graph)
    assert first.body.outputs == (2, -1)
    assert (second.trip_count, second.reverse) == (5, True)
    assert [str(node.op) for node in graph.nodes] == ["pjrt.loop", "pjrt.loop"]


def test_loop_the_other_way_takes_the_stack_from_its_end() -> None:
    back = []
    for i in range(5):
        before = "v14" if not i else f"v{15 + 3 * i - 1}"
        back += [
            f"v{15 + 3 * i} = aten.mul.Tensor({before}, v{3 * (4 - i)})",
            f"v{16 + 3 * i} = aten.neg.default(v{15 + 3 * i})",
            f"v{17 + 3 * i} = aten.abs.default(v{16 + 3 * i})",
        ]

    graph = rolled([*chain(5), *back, "return v29"])

    first, second = loops_of(graph)
    assert (first.reverse, second.reverse) == (False, True)
    assert [str(node.op) for node in graph.nodes] == ["pjrt.loop", "pjrt.loop"]


def test_value_of_two_turns_before_is_carried_through_a_queue() -> None:
    names = ["i0", "i1"]
    lines = []
    for i in range(6):
        lines += [
            f"v{3 * i} = aten.add.Tensor({names[-1]}, {names[-2]})",
            f"v{3 * i + 1} = aten.exp.default(v{3 * i})",
            f"v{3 * i + 2} = aten.cos.default(v{3 * i + 1})",
        ]
        names.append(f"v{3 * i + 2}")

    graph = rolled([*lines, "return v17"], inputs=2)

    [loop] = loops_of(graph)
    assert (loop.trip_count, loop.n_carried) == (6, 2)


def test_turn_that_is_wired_otherwise_ends_the_loop() -> None:
    lines = chain(10)
    lines[15] = "v15 = aten.sin.default(v3)"  # the sixth iteration reads what the second made

    graph = rolled([*lines, "return v14, v29"])

    assert [loop.trip_count for loop in loops_of(graph)] == [5, 5]


def test_light_copies_that_carry_nothing_are_computed_at_once() -> None:
    lines = [line for i in range(5) for line in iteration(f"i{i}", 3 * i)]

    graph = rolled([*lines, "return v2, v5, v8, v11, v14"], inputs=5)

    [loop] = loops_of(graph)
    assert (loop.vectorized, loop.n_carried, loop.trip_count) == (True, 0, 5)


def test_graph_without_repetition_stays_as_it_is() -> None:
    before = parse("\n".join(["i0: float32[3]", *chain(2), *iteration("v5", 6)[:1], "return v6"]))

    assert RollLayers()(before) is before


def test_nothing_is_rolled_while_the_setting_is_off() -> None:
    settings.roll_layers = "off"

    assert [str(node.op) for node in rolled([*chain(5), "return v14"]).nodes] != ["pjrt.loop"]


def test_lists_whose_tensors_are_stacked_go_through_as_stacks() -> None:
    lines = [*chain(5)]
    lists = "v15, v16, v17, v18, v19 = aten._foreach_neg.default([v0, v3, v6, v9, v12])"

    graph = rolled([*lines, lists, "return v15, v16, v17, v18, v19, v14"])

    ops = [str(node.op) for node in graph.nodes]
    assert ops == ["pjrt.loop", "pjrt.loop", "pjrt.elements"]
    assert [loop.vectorized for loop in loops_of(graph)] == [False, True]


def test_loop_that_carries_on_another_shape_is_refused() -> None:
    body = parse("i0: float32[3]\nv0: float32[2] = a_test.cut(i0)\nreturn v0")
    op = LoopOp(body, trip_count=3, n_carried=1, n_xs=0)
    graph = Graph(body.inputs, (Node(op.signature(), (-1,), (0,)),), (0,))

    with pytest.raises(InvalidGraph, match="next iteration of a loop"):
        graph.verify(after="a test")


def test_inputs_may_outnumber_what_is_made() -> None:
    few = [f"v{i} = aten.add.Tensor(i{i}, i{i + 15})" for i in range(15)]

    graph = rolled([*few, "return " + ", ".join(f"v{i}" for i in range(15))], inputs=30)

    assert len(graph.inputs) == 30
    assert len(list(loops_of(graph))) == 1
