"""Some of PyTorch's own distributed tests pass, and the command says so only of those that do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from suite_runs import run_suite

from torch_pjrt.testing.pytorch_suite.gaps import Gap
from torch_pjrt.testing.pytorch_suite.outcomes import Outcome, Result
from torch_pjrt.testing.pytorch_suite.verdict import Verdict
from torch_pjrt_spmd.testing.distributed_suite.checkout_gaps import CHECKOUT_GAPS
from torch_pjrt_spmd.testing.distributed_suite.gaps import GAPS
from torch_pjrt_spmd.testing.distributed_suite.team import of_all

ALL = (*GAPS, *CHECKOUT_GAPS)
TESTS = (
    "test_barrier_timeout_global",  # makes another default group, with a limit of a second
    "test_ddp_device",
    "test_all_reduce_sum_cuda",
    "test_all_gather_into_cat_tensor_cuda",
    "test_all_to_all_single_equal_split_cuda",
    "test_average_parameters",
    "test_DistributedDataParallelCPU",
    "test_3_level_hierarchical_model_averager",
    "test_nccl_high_priority_stream",
)


@pytest.mark.slow
def test_some_of_pytorchs_tests_pass(tmp_path: Path) -> None:
    run, results = run_suite(tmp_path, "distributed", "--tests", *TESTS)
    assert run.returncode == 0, run.stdout + run.stderr
    outcomes = {test.partition("::")[2]: outcome for test, outcome in results.items()}
    *passed, needs_four, of_nccl = TESTS
    assert outcomes == {
        **dict.fromkeys(passed, "passed"),
        needs_four: "skipped",
        of_nccl: "failed",
    }


def test_a_test_passes_if_it_does_on_all_ranks() -> None:
    def of(*outcomes: tuple[str, str]) -> tuple[str, str]:
        answers = [
            {"outcome": Outcome(o), "why": why, "rank": i} for i, (o, why) in enumerate(outcomes)
        ]
        return of_all(answers, "")

    assert of(("passed", ""), ("passed", "")) == ("passed", "")
    assert of(("passed", ""), ("skipped", "no GPU")) == ("skipped", "no GPU")
    assert of(("passed", ""), ("failed", "wrong")) == ("failed", "rank 1: wrong")
    lost = ("failed", "PeerError: rank 1 is gone")
    assert of(lost, ("crashed", "signal 11")) == ("crashed", "rank 1: signal 11")


def test_a_listed_test_that_passes_is_a_complaint() -> None:
    verdict = Verdict(ALL)
    listed = [pattern for gap in ALL for pattern in gap.patterns]
    assert len(listed) == len(set(listed))
    assert all(verdict.on(Result(test, Outcome.PASSED)) for test in listed)
    assert not any(verdict.on(Result(test, Outcome.FAILED)) for test in listed)
    assert verdict.on(Result("distributed::test_broadcast", Outcome.FAILED))


def test_every_row_says_why() -> None:
    def well_said(gaps: Sequence[Gap]) -> bool:
        return all(gap.why and gap.status in ("notyet", "upstream", "never") for gap in gaps)

    assert well_said(ALL)
