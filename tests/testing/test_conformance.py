"""The conformance run finds what differs from the CPU, and holds its table to what it finds."""

import json
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
import torch

from torch_pjrt.client.client import client
from torch_pjrt.lowering.table import Lowering
from torch_pjrt.testing.conformance import gaps
from torch_pjrt.testing.conformance.cases import KINDS, Case, cases_of
from torch_pjrt.testing.conformance.check import Result, check
from torch_pjrt.testing.conformance.compare import difference
from torch_pjrt.testing.conformance.gaps import Gap, OnCpu
from torch_pjrt.testing.conformance.pool import check_all
from torch_pjrt.testing.conformance.record import Record, Row
from torch_pjrt.testing.conformance.verdict import Verdict
from written_plugins import with_plugin


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_operator_that_works_passes_in_every_kind(kind: str):
    operator = "cumsum" if kind != "error" else "gather"
    for case in cases_of(operator, (kind,)):
        result = check(case, "pjrt")

        assert result.samples and not result.failed, result.failures


def test_a_wrong_rule_fails(monkeypatch: pytest.MonkeyPatch):
    rows = client().lowerings._rows
    monkeypatch.setitem(rows, torch.ops.aten.sinc.default, Lowering(jnp.cos))

    result = check(Case("sinc", "float32", "forward"), "pjrt")

    assert result.failed and "values" in result.failures[0]


ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        (ONES * 1.001, "values"),
        (ONES.double(), "dtype"),
        (ONES[:1], "shape"),
        (torch.ones(3, 2).t(), "strides"),
        ([ONES], "list"),
        ((ONES, ONES), "tuple"),
        (1.0, "float"),
    ],
)
def test_a_difference_is_told(actual: object, said: str):
    what = difference(actual, ONES)

    assert what is not None and said in what


def test_a_value_passes_that_is_about_as_near_to_the_exact_one_as_the_cpu_is():
    exact, cpu = torch.tensor([1.0]).double(), torch.tensor([1.01])

    assert difference(torch.tensor([1.02]), cpu, lambda: exact) is None
    assert difference(torch.tensor([1.04]), cpu, lambda: exact) is not None


def a_result(*, failed: int = 0, on_cpu: tuple[str, ...] = ()) -> Result:
    return Result("sin", "float32", "forward", 1, failed, failures=["x"], on_cpu=list(on_cpu))


def test_a_failure_without_a_row_is_a_complaint():
    assert "FAILED" in str(Verdict().on(a_result(failed=1)))
    assert Verdict().on(a_result()) is None


def test_a_row_whose_case_passes_is_a_complaint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gaps, "GAPS", (Gap("sin", "float32", "forward", "notyet", "a test"),))

    assert Verdict().on(a_result(failed=1)) is None
    assert "can go" in str(Verdict().on(a_result()))


def test_a_case_that_varies_may_do_either(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Gap("sin", "float32", "forward", gaps.VARIES, "for a test")
    monkeypatch.setattr(gaps, "GAPS", (row,))

    assert Verdict().on(a_result()) is None
    assert Verdict().on(a_result(failed=1)) is None


def test_running_on_the_cpu_needs_a_row(monkeypatch: pytest.MonkeyPatch):
    assert "ON CPU" in str(Verdict().on(a_result(on_cpu=("aten.sin.default",))))

    monkeypatch.setattr(gaps, "ON_CPU", (OnCpu("aten.sin.default", "a test"),))

    assert Verdict().on(a_result(on_cpu=("aten.sin.default",))) is None
    assert "ROW" in next(Verdict().on_rows([a_result()], whole=True))


def test_every_row_names_cases_that_exist():
    assert not list(Verdict().on_rows([], whole=False))


ABORTS = """
import os
from torch_pjrt.plugin import ForeignCalls, impl

@impl
def torch_pjrt_foreign_calls(device):
    return [ForeignCalls(["lapack_*"], os.abort)]
"""


@pytest.mark.slow
def test_from_disk_cases_run_in_a_process_that_loads_and_one_that_ends_it_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in with_plugin(tmp_path, "aborts", ABORTS).items():
        monkeypatch.setenv(name, value)
    cases = [Case(name, "float32", "forward") for name in ("bernoulli", "linalg.inv", "neg")]

    drawn, inv, neg = check_all(cases, "pjrt", 1, from_disk=True)

    assert [(r.failed, r.compiled, r.loaded) for r in (drawn, neg)] == [(0, 0, 1)] * 2
    assert inv.failed and "its process ended: signal 6" in inv.failures[0]


@pytest.mark.slow
def test_the_command_resumes_where_it_stopped(tmp_path):
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "torch_pjrt.testing.conformance", "sgn", "--dtypes", "int64"]
    command += ["--kinds", "forward", "inplace", "--workers", "1", "--results", str(results)]
    first = subprocess.run(command, check=False, capture_output=True, text=True)
    whole = results.read_text()
    results.write_text(whole.splitlines(keepends=True)[0] + '{"operator": "cut o')

    second = subprocess.run([*command, "--resume"], check=False, capture_output=True, text=True)

    assert first.returncode == second.returncode == 0, first.stdout + second.stdout
    assert "2 cases, 1 of them known" in second.stdout
    for text in (whole, results.read_text()):
        assert {json.loads(line)["kind"] for line in text.splitlines()} == {"forward", "inplace"}


def made_of(case: Case, samples: int = 0, loaded: int = 0) -> Result:
    return Result(case.operator, case.dtype, case.kind, samples=samples, loaded=loaded)


def test_a_record_has_a_row_for_each_operator_that_was_run_as_a_whole(tmp_path: Path):
    path = tmp_path / "record.md"
    record = Record(path, "2026-11-28")
    (gap,) = (case for case in gaps.gap_of() if case.operator == "ldexp")
    *most, last = [made_of(case, samples=3, loaded=2) for case in cases_of("ldexp")]
    for result in most:
        result.failed = int(result.case == gap)
        record.add(result)
    assert not path.exists()  # a case is missing

    last.failed, last.compiled = 1, 1
    record.add(last)
    record.add(made_of(next(cases_of("sinc"))))  # some are missing

    n = len(most) + 1
    row = Row(
        "ldexp", "2026-11-28", n, n - 2, listed=1, failed=1, runs=3 * n, loaded=2 * n, compiled=1
    )
    assert Record(path, "2027-01-01").rows == {"ldexp": row}
    assert f"{n} cases of {3 * n} runs: {n - 2} passed, 1 differ as" in path.read_text()
