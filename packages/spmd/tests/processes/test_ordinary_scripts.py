"""An ordinary script of several processes compiles what one of a single device does: one step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from several import run

# Programs that a step compiles and runs.
FLAT = {
    "FSDP1": [[1, 1], *[[0, 1]] * 5],
    # parts of ranks differ in shape: the optimizer's program is each rank's own
    "FSDP1, original parameters": [[3, 3], *[[0, 2]] * 5],
}
OTHERS = {
    "FSDP2": [[1, 1], *[[0, 1]] * 5],
    # in its second step DDP tells the ranks the order of new buckets (two), makes them, and has another step
    "DDP": [[1, 1], [4, 4], *[[0, 1]] * 4],
}


# Over two dims of a mesh, with the collectives of rows and columns.
OF_GRIDS = {
    "FSDP2, hybrid": [[1, 1], *[[0, 1]] * 3],
    "FSDP2 and tensor parallel": [[1, 1], *[[0, 1]] * 3],
    "DDP and tensor parallel": [[1, 1], [4, 4], *[[0, 1]] * 2],
}


@pytest.mark.slow
@pytest.mark.parametrize("expected", [OTHERS, FLAT], ids=("FSDP2 and DDP", "FSDP1"))
def test_each_step_is_a_program_and_one_is_compiled(expected: dict[str, list[list[int]]]):
    for ended in run("ordinary_scripts.py", 2, *expected):
        assert ended.status == 0, ended.err
        assert json.loads(ended.out.splitlines()[-1]) == expected


@pytest.mark.slow
def test_over_two_dims_of_a_mesh_too_and_in_a_second_start_none_is_compiled(tmp_path: Path):
    folder = {"TORCH_PJRT_CACHE_DIR": str(tmp_path)}
    for start in range(2):
        for ended in run("ordinary_scripts.py", 4, "grids", variables=folder):
            assert ended.status == 0, ended.err
            steps = json.loads(ended.out.splitlines()[-1])
            expected = {
                name: [[n if start == 0 else 0, m] for n, m in of] for name, of in OF_GRIDS.items()
            }
            assert steps == expected
