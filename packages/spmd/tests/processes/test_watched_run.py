"""A run tells who is slow, who has diverged and what each waits for; it can be left and joined again."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from several import free_port

import warm
from hangs import HANGS_S, SLACK_S
from torch_pjrt_spmd.commands import main
from torch_pjrt_spmd.commands.status import _board, _posts, _verdict

SCRIPT = Path(__file__).parent / "watched_run.py"
LIMIT_S = 5


class Run:
    """The two processes, what they have said by case, and the state that was seen before rank 0 was ended."""

    said: list[dict[str, Any]]
    posts: dict[int, Any]
    table: str
    status: int
    statuses: list[int]
    seconds_to_end: float
    last_words: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder, port = tmp_path_factory.mktemp("watched"), free_port()
    read, write = os.pipe()  # the standard input of both, which rank 1 alone reads
    processes = []
    for rank in range(2):
        own = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "OMP_NUM_THREADS": "1",
            "TORCH_PJRT_PEER_TIMEOUT": str(LIMIT_S),
        }
        with open(folder / f"{rank}.out", "w") as out, open(folder / f"{rank}.err", "w") as err:
            processes.append(warm.start([str(SCRIPT)], own, stdin=read, stdout=out, stderr=err))
    try:
        yield _watched(processes, write, folder, port)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        os.close(read)
        os.close(write)


def _watched(processes: list[Any], stdin: int, folder: Path, port: int) -> Run:
    run, end = Run(), time.monotonic() + HANGS_S
    while '"compiled"' not in (folder / "0.out").read_text():
        assert time.monotonic() < end, (folder / "0.err").read_text()
        assert processes[0].poll() is None, (folder / "0.err").read_text()
        time.sleep(0.05)
    time.sleep(1.5)
    board, _ = _board(f"127.0.0.1:{port}")
    posts, missing = _posts(board)
    run.posts = {post.rank: (post, _verdict(board, post)) for post in posts}
    assert not missing
    with redirect_stdout(io.StringIO()) as shown:
        run.status = main(["status", "--store", f"127.0.0.1:{port}"])
    run.table = shown.getvalue()
    processes[0].send_signal(signal.SIGTERM)
    begun = time.monotonic()
    processes[0].wait(HANGS_S)
    run.seconds_to_end = time.monotonic() - begun
    os.write(stdin, b"go on\n")
    processes[1].wait(HANGS_S)
    run.statuses = [process.returncode for process in processes]
    run.said = []
    for rank in range(2):
        lines = (folder / f"{rank}.out").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        run.said.append({line["case"]: line for line in found})
    run.last_words = (folder / "1.err").read_text()
    return run


def test_the_slow_rank_is_named(ended: Run):
    for said in ended.said:
        assert said["slow"]["ranks"] == [1]
        assert "times the usual" in said["slow"]["text"][0]
        assert "watched_run.py:" in said["slow"]["text"][0]


def test_the_rank_and_the_first_tensor_that_differ_are_named(ended: Run):
    for said in ended.said:
        found = said["diverged: a_bit"]
        assert found["tensor"] == "1.weight" and found["ranks"] == [0, 1][1:]
        assert found["error"].startswith(
            "Rank 1 has diverged: `1.weight` is the first tensor that differs"
        )
        assert said["diverged: nothing"]["error"] == ""


def test_one_element_and_a_swap_are_seen_in_each_dtype(ended: Run):
    for said in ended.said:
        assert said["dtypes"]["right"] == [True] * 18


def test_a_second_process_group_works_and_the_first_is_forgotten(ended: Run):
    for said in ended.said:
        assert said["groups"]["n"] == 2
        assert said["again"] == {"case": "again", "value": [2.0, 2.0], "n": 1}


def test_a_rank_that_compiles_is_waited_for_beyond_the_limit(ended: Run):
    for said in ended.said:
        assert said["compiled"]["value"] == [2.0, 2.0]


def test_nothing_of_ours_catches_sigterm(ended: Run):
    assert [said["signals"]["terms"] for said in ended.said] == [False, False]


def test_the_board_tells_who_waits_for_whom_and_where(ended: Run):
    (waits, _), (works, _) = ended.posts[0], ended.posts[1]
    [line] = [
        n
        for n, text in enumerate(SCRIPT.read_text().splitlines(), 1)
        if "the line at which rank 0 waits" in text
    ]
    assert waits.phase == "waiting" and waits.ranks == [0, 1] and "all_reduce SUM" in waits.doing
    assert waits.line == f"{SCRIPT}:{line} in main"
    assert works.phase == "computing" and "watched_run.py" in works.line
    assert waits.step == works.step == 8
    assert works.own_s > 0.1 > waits.own_s and waits.step_s > 0.1
    assert waits.host_bytes > 1 << 20
    assert "waiting for 1" in ended.table and "slow" in ended.table
    assert ended.status == 0


def test_a_waiting_process_heeds_sigterm(ended: Run):
    assert ended.seconds_to_end < SLACK_S  # who keeps the store stays for 3 s
    assert ended.statuses == [7, 1]
    assert "keeps" in ended.last_words or "Rank 0" in ended.last_words


def test_no_run_is_said(capsys: pytest.CaptureFixture[str]):
    assert main(["status", "--store", f"127.0.0.1:{free_port()}"]) == 2
    assert "NoRun" in capsys.readouterr().err
