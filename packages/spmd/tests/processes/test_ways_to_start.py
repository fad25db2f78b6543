"""A group of the backend `pjrt` starts by `env://`, by `pjrt://`, by a DeviceMesh, alone or beside gloo."""

from __future__ import annotations

import pytest
from several import free_port, run

SLOW = pytest.mark.slow("file")


@pytest.mark.parametrize(
    "way",
    ["device", *(pytest.param(w, marks=SLOW) for w in ("pjrt", "cpu:gloo,pjrt:pjrt", "mesh"))],
)
def test_processes_find_each_other_by_the_environment(way: str):
    for rank, ended in enumerate(run("ways_to_start.py", 2, way)):
        assert ended.status == 0, ended.err
        assert ended.out.splitlines()[-1] == f"[3.0, 3.0] {rank} 2"
        # What PyTorch's C++ says of timers goes past Python; nothing else is said.
        said = [line for line in ended.err.splitlines() if "logger.cpp" not in line]
        assert [line for line in said if "arning" in line] == []


def test_processes_of_a_run_of_jax_need_no_other_address():
    started = run(
        "ways_to_start.py",
        2,
        "url",
        of_rank=("JAX_PROCESS_ID",),
        JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{free_port()}",
        JAX_NUM_PROCESSES="2",
    )
    for ended in started:
        assert ended.status == 0, ended.err
        assert ended.out.splitlines()[-1].startswith("[3.0, 3.0] ")
