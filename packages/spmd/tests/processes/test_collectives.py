"""Every collective of the backend `pjrt` gives what gloo gives on CPU tensors in the same processes."""

from __future__ import annotations

import json

import pytest
from several import run

SCRIPT = "compare_with_gloo.py"


def _report(n: int, *arguments: str, chips: int = 1, script: str = SCRIPT) -> dict:
    """What the processes agree on; they ran as many cases each."""
    reports = []
    for ended in run(script, n, *arguments, chips=chips):
        assert ended.status == 0, ended.err
        assert "Overriding a previously registered kernel" not in ended.err
        reports.append(json.loads(ended.out.splitlines()[-1]))
    for report in reports:
        assert report["failed"] == []
    return reports[0]


def test_splits_views_handles_objects_and_subgroups_are_as_with_gloo():
    report = _report(2, "--few")

    assert report["gloo"] >= 36


def test_tensors_that_do_not_go_together_are_refused_at_the_call_and_nothing_is_sent():
    limit_s = 60
    variables = {"TORCH_PJRT_PEER_TIMEOUT": str(limit_s)}
    for rank, ended in enumerate(run("refused_calls.py", 2, variables=variables)):
        assert ended.status == 0, ended.err
        *cases, after = [json.loads(line) for line in ended.out.splitlines() if line[0] == "{"]
        assert len(cases) == (25 if rank == 0 else 21)
        for case in cases:
            assert case["said"].startswith(("CollectiveError: ", "ValueError: ", "TypeError: ")), (
                case
            )
            assert case["seconds"] < limit_s, case
        assert after["said"] == "[2.0, 2.0]"


@pytest.mark.slow("file")
def test_every_collective_dtype_and_reduction_is_as_with_gloo():
    report = _report(2)

    assert report["gloo"] >= 296
    assert report["formula"] >= 139


@pytest.mark.slow("file")
def test_four_processes_are_as_with_gloo():
    report = _report(4, "--few")

    assert report["gloo"] >= 36


@pytest.mark.slow("file")
def test_with_two_chips_each_the_first_of_each_process_takes_part():
    report = _report(2, "--few", chips=2)

    assert report["gloo"] >= 36
    assert report["chips"] == 2


@pytest.mark.slow("file")
def test_functional_collectives_and_gradients_are_as_with_gloo_eager_and_compiled():
    report = _report(2, script="functional_cases.py")

    assert report["gloo"] == 31
