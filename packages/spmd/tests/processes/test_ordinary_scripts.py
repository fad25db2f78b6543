"""An ordinary script of several processes compiles what one of a single device does: state, and one step."""

from __future__ import annotations

import json

import pytest
from several import run

# Programs that a step compiles and runs. The first one makes the optimizer's state, too.
EXPECTED = {
    "FSDP2": [[2, 2], *[[0, 1]] * 5],
    "FSDP1": [[2, 2], *[[0, 1]] * 5],
    # parts of ranks differ in shape: the optimizer's program is each rank's own
    "FSDP1, original parameters": [[3, 3], *[[0, 2]] * 5],
    # in its second step DDP tells the ranks the order of new buckets (two), makes them, and has another step
    "DDP": [[2, 2], [4, 4], *[[0, 1]] * 4],
}


# Over two dims of a mesh a step is a program for each change of the process group.
OF_GRIDS = {"FSDP2, hybrid": 6, "FSDP2 and tensor parallel": 9}


def test_each_step_is_a_program_and_one_is_compiled():
    for ended in run("ordinary_scripts.py", 2):
        assert ended.status == 0, ended.err
        assert json.loads(ended.out.splitlines()[-1]) == EXPECTED


@pytest.mark.slow
def test_over_two_dims_of_a_mesh_no_program_is_compiled_from_the_third_step_on():
    for ended in run("ordinary_scripts.py", 4, "grids", timeout_s=400):
        assert ended.status == 0, ended.err
        steps = json.loads(ended.out.splitlines()[-1])
        assert {name: of[2:] for name, of in steps.items()} == {
            name: [[0, n]] * len(steps[name][2:]) for name, n in OF_GRIDS.items()
        }
        assert all(len(of) > 3 for of in steps.values())
