"""A script joins the run that torchrun, Slurm or nobody has started it in, also when it is started again."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from torch_pjrt.errors import SettingError
from torch_pjrt.plugin import Processes
from torch_pjrt_spmd.distributed import joining
from torch_pjrt_spmd.distributed.addresses import own_address
from torch_pjrt_spmd.launching.clusters import first_host, of_slurm, own_chips

SCRIPTS = Path(__file__).parent / "scripts"


def started(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    path = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )


def printed(*processes: subprocess.Popen[str]) -> str:
    """What they print, once all have ended well."""
    said = [process.communicate(timeout=100)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(said)
    return "\n".join(said)


def torchrun(script: str, *options: str, n_hosts: int = 1, **variables: str) -> str:
    """What two processes print, of one host or of two."""
    command = ["-m", "torch.distributed.run", "--nproc-per-node", str(2 // n_hosts), *options]
    command.append(str(SCRIPTS / script))
    return printed(*[started(command, variables) for _ in range(n_hosts)])


WAYS = {
    "standalone": (1, ["--standalone"]),
    "a port": (1, ["--master-port", "PORT"]),
    "two hosts": (
        2,
        ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:PORT"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["standalone", "a port", "two hosts"])
def test_second_attempt_of_torchrun_sees_nothing_of_the_first(way: str, tmp_path: Path) -> None:
    n_hosts, options = WAYS[way]
    options = [one.replace("PORT", str(free_port())) for one in options]

    said = torchrun(
        "fails_once.py",
        *("--max-restarts", "1"),
        *options,
        n_hosts=n_hosts,
        MARK=str(tmp_path / "mark"),
    )

    assert sorted(re.findall(r"^attempt.*", said, re.M)) == [
        f"attempt {attempt}, rank {rank}: [12.0, 12.0]" for attempt in (1, 2) for rank in (0, 1)
    ]
    assert said.count("ValueError: a fault of the first attempt") == 1
    assert sorted(re.findall(r"^done.*", said, re.M)) == [
        f"done, rank {rank}: [3.0, 3.0]" for rank in (0, 1)
    ]


@pytest.mark.slow
def test_one_script_runs_under_torchrun_slurm_and_alone() -> None:
    script = str(SCRIPTS / "joins.py")

    by_torchrun = torchrun("joins.py", "--standalone", AGAIN="1")
    steps = [started([script], slurm(SLURM_PROCID=str(rank))) for rank in (0, 1)]
    by_slurm = printed(*steps)
    alone = printed(started([script], {"AGAIN": "1"}))

    for said in (by_torchrun, by_slurm):
        assert "rank 0 of 2: [3.0, 3.0]" in said and "rank 1 of 2: [3.0, 3.0]" in said
    assert by_torchrun.count("again: [6.0, 6.0]") == 2
    assert "rank 0 of 1: [1.0, 1.0]" in alone and "again: [1.0, 1.0]" in alone


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def slurm(**variables: str) -> dict[str, str]:
    """What a step of two processes on this host has."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": variables.get("SLURM_PROCID", "0"),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "JAX_COORDINATOR_PORT": _PORT,
        **variables,
    }


_PORT = str(free_port())


def test_step_of_slurm_is_a_run() -> None:
    step = slurm(SLURM_PROCID="1", SLURM_STEP_NODELIST="gpu[07-09,12],other")

    assert of_slurm(step) == Processes(f"gpu07:{_PORT}", 2, 1)
    by_number = of_slurm({**step, "JAX_COORDINATOR_PORT": ""})
    assert by_number == Processes(f"gpu07:{61440 + (4711 * 16 + 2) % 4096}", 2, 1)
    assert of_slurm({**step, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert of_slurm({**step, "SLURM_STEP_NODELIST": ""}) is None  # the script of sbatch
    assert of_slurm({}) is None
    with pytest.raises(SettingError, match="SLURM_PROCID is a number"):
        of_slurm({**step, "SLURM_PROCID": "one"})


@pytest.mark.parametrize(
    "hosts, first",
    [
        ("node", "node"),
        ("node1,node2", "node1"),
        ("node[001-015],x", "node001"),
        ("n[3,7-9]", "n3"),
        ("rack[1-2]n[04-08]-ib,x", "rack1n04-ib"),
    ],
)
def test_first_host_is_read_from_a_list_of_slurm(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_processes_of_a_host_share_its_gpus() -> None:
    step = slurm(SLURM_LOCALID="1", CUDA_VISIBLE_DEVICES="0,1,2,3")

    assert own_chips(step) == (2, 3)
    assert own_chips({**step, "CUDA_VISIBLE_DEVICES": "5"}) is None  # --gpus-per-task
    assert own_chips({**step, "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1"}) is None
    assert own_chips({**step, "SLURM_STEP_TASKS_PER_NODE": "1,4", "SLURM_NODEID": "1"}) == (1,)
    with pytest.raises(SettingError, match="SLURM_STEP_TASKS_PER_NODE"):
        own_chips({**step, "SLURM_STEP_TASKS_PER_NODE": "many"})


def test_process_of_torchrun_takes_the_chip_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert joining.own_chips() == (3,)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")  # its launcher shows it one
    assert joining.own_chips() is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert joining.own_chips() is None


def test_coordinator_is_reached_by_the_name_of_a_store_that_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Store:
        host, port = "localhost", 1

    assert own_address(Store()) == "127.0.0.1"
    Store.host = socket.gethostname()
    assert own_address(Store()) in (socket.gethostname(), "127.0.0.1")
    Store.host = "127.0.0.2"
    assert own_address(Store()) == "127.0.0.2"
    Store.host = "192.0.2.7"  # elsewhere
    assert socket.inet_aton(own_address(Store())) != socket.inet_aton("192.0.2.7")
