"""Problems are read from JSON, plain and gzip, and what is no problem is refused with the part at fault."""

import copy
import gzip
import json

import numpy as np
import pytest

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
