"""Problems are read from JSON, plain and gzip, and what is no problem is refused with the part at fault."""

import copy
import gzip
import json

import numpy as np
import pytest

from torch_pjrt_spmd.autoshard.commands import main
from torch_pjrt_spmd.autoshard.solver import FORBIDDEN, UnreadableProblem, from_json, read

EXAMPLE = {
    "problem": {
        "name": "example",
        "nodes": {
            "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
            "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
            "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
        },
        "edges": {
            "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
            "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
        },
        "usage_limit": 50,
    }
}


def test_costs_and_memory_of_choices_are_those_that_the_contest_states():
    problem = from_json(EXAMPLE)

    assert problem.cost(np.array([0, 0, 2, 1, 0])) == 445
    assert problem.cost(np.array([0, 0, 2, 0, 0])) == 545
    assert problem.peak(np.array([0, 0, 2, 1, 0])) == 50


def test_a_file_is_read_plain_and_gzip(tmp_path):
    plain, packed = tmp_path / "plain.json", tmp_path / "packed"
    plain.write_text(json.dumps(EXAMPLE))
    packed.write_bytes(gzip.compress(json.dumps(EXAMPLE).encode()))

    for path in (plain, packed):
        problem = read(path)

        assert problem.nodes == 5
        assert problem.usage_limit == 50
        assert problem.tables[2].tolist() == [[90, 10], [20, 80]]


def test_equal_tables_are_kept_once():
    whole = copy.deepcopy(EXAMPLE)
    whole["problem"]["edges"]["nodes"].append([2, 4])
    whole["problem"]["edges"]["costs"].append([60, 20, 30])

    problem = from_json(whole)

    assert len(problem.tables) == 5
    assert problem.edge_tables[5] == problem.edge_tables[3]


def test_costs_beyond_64_bits_are_forbidden():
    whole = copy.deepcopy(EXAMPLE)
    whole["problem"]["edges"]["costs"][0] = [10**30, 40]

    assert from_json(whole).tables[0].tolist() == [[FORBIDDEN, 40]]


def test_a_problem_without_a_limit_has_none():
    whole = copy.deepcopy(EXAMPLE)
    del whole["problem"]["usage_limit"]

    assert from_json(whole).usage_limit is None


def _without_nodes(problem):
    del problem["nodes"]


def _with_node_beyond(problem):
    problem["edges"]["nodes"][1] = [0, 5]


def _with_short_table(problem):
    problem["edges"]["costs"][2] = [1, 2, 3]


def _with_missing_usage(problem):
    problem["nodes"]["usages"][1] = [25]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_without_nodes, "no part 'nodes'"),
        (_with_node_beyond, "edge 1 joins 0 and 5, but there are 5 nodes"),
        (_with_short_table, "edge 2 has 3 entries, expected 2 x 2"),
        (_with_missing_usage, "node 1 has 2 costs and 1 usages"),
    ],
)
def test_what_is_no_problem_is_refused_with_the_part_at_fault(spoil, says):
    whole = copy.deepcopy(EXAMPLE)
    spoil(whole["problem"])

    with pytest.raises(UnreadableProblem, match=says):
        from_json(whole)


def test_what_is_not_json_is_refused(tmp_path):
    path = tmp_path / "words"
    path.write_text("no problem")

    with pytest.raises(UnreadableProblem, match="is not JSON"):
        read(path)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("nodes",), 5, "expected the keys"),
        (("nodes", "costs"), None, "are lists"),
        (("nodes", "intervals"), {}, "are lists"),
        (("nodes", "intervals", 1), [40], r"interval 1 is \[40\]"),
        (("nodes", "intervals", 1), [40, 50, 60], "interval 1"),
        (("nodes", "intervals", 1), ["a", 1], "interval 1"),
        (("nodes", "intervals", 1), [1.5, 2], "interval 1"),
        (("nodes", "intervals", 1), None, "interval 1"),
        (("nodes", "costs", 0), [], "node 0 has 0 costs"),
        (("nodes", "costs", 0), [1.9], "node 0 has the cost 1.9"),
        (("nodes", "costs", 0), [float("nan")], "node 0 has the cost nan"),
        (("nodes", "costs", 0), [True], "node 0 has costs that are no list of numbers"),
        (("nodes", "costs", 0), ["15"], "node 0 has costs that are no list of numbers"),
        (("nodes", "costs", 0), [[15]], "node 0 has costs that are no list of numbers"),
        (("nodes", "costs", 0), [-(10**30)], "node 0 has a cost below"),
        (("nodes", "costs", 0), 15, "node 0 has costs that are no list of numbers"),
        (("nodes", "usages", 0), [10**30], "node 0 has a usage that is not from 0"),
        (("nodes", "usages", 0), [-1], "node 0 has a usage that is not from 0"),
        (("nodes", "usages", 0), [0.5], "node 0 has the usage 0.5"),
        (("nodes", "usages", 0), None, "node 0 has usages that are no list"),
        (("edges", "nodes", 0), [0, 1, 2], "edge 0 is"),
        (("edges", "nodes", 0), [-1, 1], "edge 0 joins -1 and 1"),
        (("edges", "nodes", 0), 3, "edge 0 is 3"),
        (("edges", "costs", 0), [["a"], 1], "edge 0 has an entry that is no number"),
        (("edges", "costs", 0), ["a", 1], "edge 0 has costs that are no list of numbers"),
        (("edges", "costs", 0), None, "edge 0 has no entries"),
        (("edges", "costs", 0), [None, 1], "edge 0 has the cost None"),
        (("usage_limit",), "50", "usage_limit is '50'"),
        (("usage_limit",), 50.5, "usage_limit is 50.5"),
        (("usage_limit",), [50], "usage_limit is"),
    ],
)  # fmt: skip
def test_part_of_another_kind_is_refused_by_its_place(path, value, says, tmp_path, capsys):
    whole = copy.deepcopy(EXAMPLE)
    at = whole["problem"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value

    with pytest.raises(UnreadableProblem, match=says):
        from_json(whole)
    file = tmp_path / "problem.json"
    file.write_text(json.dumps(whole))
    assert main(["solve", str(file), "--seconds", "5"]) == 2
    assert "UnreadableProblem" in capsys.readouterr().err


@pytest.mark.parametrize(
    "data", [b"[1]", b"5", b"null", b'"a"', b'{"problem": 1}', b'{"problem": {}}']
)
def test_json_of_something_else_is_refused(data, tmp_path):
    (tmp_path / "file").write_bytes(data)

    with pytest.raises(UnreadableProblem):
        read(tmp_path / "file")


@pytest.mark.parametrize("keep", [1, 10, 50, 100])
def test_gzip_that_is_cut_or_spoilt_is_refused(keep, tmp_path):
    packed = gzip.compress(json.dumps(EXAMPLE).encode())
    (tmp_path / "cut").write_bytes(packed[:-keep])
    (tmp_path / "spoilt").write_bytes(
        packed[:20] + bytes(x ^ 255 for x in packed[20:40]) + packed[40:]
    )

    for name in ("cut", "spoilt"):
        with pytest.raises(UnreadableProblem, match="is not JSON"):
            read(tmp_path / name)


def test_whole_numbers_may_be_written_as_floats():
    whole = copy.deepcopy(EXAMPLE)
    whole["problem"]["nodes"]["costs"][0] = [15.0]

    assert from_json(whole).node_costs[0].tolist() == [15]
