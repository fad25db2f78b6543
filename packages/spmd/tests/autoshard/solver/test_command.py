"""`python -m torch_pjrt_spmd.autoshard solve FILE`: the choice is the last line; faults have an exit code."""

import ast
import json
import subprocess
import sys

import pytest

from torch_pjrt_spmd.autoshard.commands import main

NODES = {"intervals": [[0, 2], [1, 3]], "costs": [[1, 5], [1, 5]], "usages": [[9, 1], [9, 1]]}
EDGES = {"nodes": [[0, 1]], "costs": [[0, 0, 3, 0]]}


def written(path, limit):
    path.write_text(json.dumps({"problem": {"nodes": NODES, "edges": EDGES, "usage_limit": limit}}))
    return str(path)


def run(*arguments):
    command = [sys.executable, "-m", "torch_pjrt_spmd.autoshard", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_the_last_line_is_the_choice_and_the_rest_is_on_the_other_stream(tmp_path):
    done = run("solve", written(tmp_path / "problem.json", 10), "--seconds", "20", "--progress")

    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == [0, 1]
    assert "cost 6, which is the least; memory 10 of 10" in done.stderr


@pytest.mark.parametrize(
    ("limit", "code", "says"),
    [(1, 1, "Infeasible: No choice is within the limit of 1"), (None, 2, "No such file")],
)
def test_faults_are_told_without_a_traceback(tmp_path, capsys, limit, code, says):
    path = str(tmp_path / "absent") if limit is None else written(tmp_path / "problem.json", limit)

    assert main(["solve", path, "--seconds", "20"]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""
