"""A mesh over the chips of several processes: the same script gives the same as in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import several

Found = dict[str, Any]


@pytest.fixture(scope="module")
def alone() -> Found:
    [found] = on_eight_chips(1)
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for programs on disk."""
    return tmp_path_factory.mktemp("programs")


def on_eight_chips(n: int, *arguments: str, programs: str = "") -> list[Found]:
    """What each of n processes found, which share eight chips."""
    ended = several.run("one_mesh.py", n, *arguments, chips=8 // n, TORCH_PJRT_CACHE_DIR=programs)
    assert [e.status for e in ended] == [0] * n, [e.err[-3000:] for e in ended]
    return [json.loads(e.out.strip().splitlines()[-1]) for e in ended]


def assert_same(found: list[Found], alone: Found) -> None:
    for one in found:
        for way, losses in alone["losses"].items():
            assert one["losses"][way] == pytest.approx(losses, rel=1e-5), way
        for name, value in alone["values"].items():
            wanted = pytest.approx(value, rel=1e-5, abs=1e-6) if flat(value) else value
            assert one["values"][name] == wanted, name
        for name in ("shuffled", "listed", "made"):
            assert one["batches"][name] == alone["batches"][name], name


def flat(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float))


@pytest.mark.slow
def test_two_processes_compute_what_one_does_by_capture() -> None:
    [alone] = on_eight_chips(1, "--few")

    assert_same(on_eight_chips(2, "--few"), alone)


@pytest.mark.slow
def test_two_processes_compute_what_one_does(alone: Found, programs: Path) -> None:
    found = on_eight_chips(2, programs=str(programs))

    assert_same(found, alone)
    assert [one["batches"]["loaded here"] for one in found] == [0.5, 0.5]
    assert all(one["compiled"] > 0 for one in found)


@pytest.mark.slow
def test_programs_from_disk_compute_it_too(alone: Found, programs: Path) -> None:
    found = on_eight_chips(2, programs=str(programs))
    if any(one["compiled"] for one in found):  # this test runs by itself
        found = on_eight_chips(2, programs=str(programs))

    assert_same(found, alone)
    assert [one["compiled"] for one in found] == [0, 0]


@pytest.mark.slow
def test_four_processes_compute_what_one_does(alone: Found) -> None:
    assert_same(on_eight_chips(4), alone)


def test_what_both_processes_have_and_one_has_otherwise_is_an_error_at_the_next_launch() -> None:
    limit = {"TORCH_PJRT_PEER_TIMEOUT": "10"}
    for ended in several.run("other_content.py", 2, chips=2, variables=limit):
        assert ended.status == 0, ended.err
        lines = [json.loads(line) for line in ended.out.splitlines() if line.startswith('["')]
        said = dict(lines)
        assert said["the_same_weights"] == lines[0][1] == "36.0"
        assert said["own_rows"] == "32.0"
        assert said["not_compared"] == "8"
        wrong = {
            name: text for name, text in lines if name.startswith("own_") and name != "own_rows"
        }
        assert len(wrong) == 4
        for name, text in wrong.items():
            assert text.startswith("PeersDiffer: "), (name, text)
            assert "since the last launch is the first that differs" in text
            assert "rank 0: float32 [8] with checksum" in text
        assert "upload 1 since" in said["own_weights"]
        number = said["a_number_within_an_operator"]
        assert "rank 0: " in number and "sum" in number
        texts = [line.split(": ", 1)[1] for line in number.splitlines() if "rank " in line][:2]
        assert texts[0] != texts[1]
        assert said["read_twice"] == str(["PeersDiffer"] * 3)
        assert [text for name, text in lines if name == "after_letting_go"] == ["36.0", "36.0"]
