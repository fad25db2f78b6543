"""`pytorch_suite` runs device-generic tests of PyTorch: it survives what they do, and its rows are strict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torch_pjrt.testing.parts import part
from torch_pjrt.testing.pytorch_suite.__main__ import CARRIED, main
from torch_pjrt.testing.pytorch_suite.gaps import GAPS, Gap
from torch_pjrt.testing.pytorch_suite.outcomes import Outcome, Result
from torch_pjrt.testing.pytorch_suite.verdict import Verdict
from torch_pjrt.testing.results import read_results

pytestmark = pytest.mark.slow("file")

TESTS = """
import os, time, unittest, warnings
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCUDA
from torch.testing._internal.common_utils import TestCase

class TestSome(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_agrees(self, device, dtype):
        self.assertEqual(torch.ones(3, device=device, dtype=dtype).sum().item(), 3)
    def test_differs_here(self, device):
        self.assertEqual(torch.device(device).type, "cpu")
    def test_differs_everywhere(self, device):
        self.assertEqual(torch.ones(2, device=device), torch.zeros(2, device=device))
    @onlyCUDA
    def test_of_others(self, device): pass
    @unittest.expectedFailure
    def test_expected_to_fail(self, device): raise AssertionError
    def test_ends_its_process(self, device):
        if "pjrt" in device: os.abort()
    def test_hangs(self, device): time.sleep(60)
    def test_last(self, device): pass
    def test_next(self, device): SEEN.append(device)
    def test_found_late(self, device):
        if "pjrt" in device: torch.ones(5, device=device)[torch.tensor([0, 9], device=device) * 1]
    def test_next_to_what_is_found_late(self, device):
        self.assertEqual(torch.ones(3, device=device).sum().item(), 3)
    def test_that_counts_warnings(self, device):
        with warnings.catch_warnings(record=True) as said:
            warnings.warn("one")
        self.assertEqual(len(said), 1)
    def test_of_what_is_compiled_quickly(self, device):
        self.assertFalse("pjrt" in device and "optimization_level=0" in os.environ.get("XLA_FLAGS", ""))
    def test_what_others_left(self, device): self.assertFalse("pjrt" in device and SEEN)

SEEN = []
instantiate_device_type_tests(TestSome, globals())

class TestMore(TestCase):
    def test_of_a_later_class_differs_everywhere(self, device): self.fail(device)

instantiate_device_type_tests(TestMore, globals())
"""

WHAT_COMES_OF_THEM = {
    "test_agrees_pjrt_float32": Outcome.PASSED,
    "test_agrees_pjrt_int64": Outcome.PASSED,
    "test_differs_here_pjrt": Outcome.FAILED,
    "test_differs_everywhere_pjrt": Outcome.SKIPPED,
    "test_of_a_later_class_differs_everywhere_pjrt": Outcome.SKIPPED,
    "test_found_late_pjrt": Outcome.FAILED,
    "test_next_to_what_is_found_late_pjrt": Outcome.PASSED,
    "test_that_counts_warnings_pjrt": Outcome.PASSED,
    "test_of_others_pjrt": Outcome.SKIPPED,
    "test_expected_to_fail_pjrt": Outcome.PASSED,
    "test_ends_its_process_pjrt": Outcome.CRASHED,
    "test_hangs_pjrt": Outcome.HUNG,
    "test_last_pjrt": Outcome.PASSED,
    "test_next_pjrt": Outcome.PASSED,
    "test_of_what_is_compiled_quickly_pjrt": Outcome.PASSED,
    "test_what_others_left_pjrt": Outcome.FAILED,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the results of TESTS are, the third of them lost."""
    folder = tmp_path_factory.mktemp("suite")
    file, results = folder / "test_some.py", folder / "results.jsonl"
    file.write_text(TESTS)
    status = main([str(file), "--results", str(results), "--workers", "1", "--timeout", "15"])
    assert status == 1
    return results


def test_each_test_has_its_outcome(results: Path) -> None:
    outcomes = {r.test.partition(".")[2]: r.outcome for r in read_results(results, Result.of_dict)}

    assert outcomes == WHAT_COMES_OF_THEM


def test_what_failed_says_why(results: Path) -> None:
    why = {r.test.partition(".")[2]: r.why for r in read_results(results, Result.of_dict)}

    assert "'pjrt'" in why["test_differs_here_pjrt"]
    assert why["test_differs_everywhere_pjrt"].startswith("fails on the CPU, too")
    assert why["test_ends_its_process_pjrt"] == "signal 6: Fatal Python error: Aborted"
    assert why["test_of_others_pjrt"] == "Only runs on cuda"
    assert why["test_what_others_left_pjrt"].startswith("not alone (passed): ")


def test_a_run_goes_on_where_it_stopped(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = results.read_text().splitlines(keepends=True)
    lost = [line for line in lines if "test_last" in line]
    part_of_it = results.with_name("resumed.jsonl")
    part_of_it.write_text("".join(line for line in lines if line not in lost) + lost[0][:20])

    main([str(results.with_name("test_some.py")), "--results", str(part_of_it), "--resume"])

    assert "1 tests in" in capsys.readouterr().out
    assert {r.test for r in read_results(part_of_it, Result.of_dict)} == {
        json.loads(line)["test"] for line in lines
    }


TESTS_OF_LONG_PROCESSES = """
import os
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

class TestMany(TestCase):
    def test_a(self, device): self.note(device)
    def test_b(self, device): self.note(device)
    def test_c(self, device):
        self.note(device)
        where_it_ends(device)
    def note(self, device):
        with open(os.path.join(os.path.dirname(__file__), "pids"), "a") as file:
            print(os.getpid(), file=file)

def where_it_ends(device):
    if "pjrt" in device:
        os.abort()

instantiate_device_type_tests(TestMany, globals())
"""


def test_a_process_runs_as_many_tests_as_are_asked_for_and_says_where_it_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test_many.py"
    file.write_text(TESTS_OF_LONG_PROCESSES)
    how = ["--results", str(tmp_path / "results"), "--workers", "1", "--tests-of-a-child", "2"]

    main([str(file), *how])

    a, b, c, again = (tmp_path / "pids").read_text().split()
    assert a == b
    assert len({a, c, again}) == 3
    assert "in where_it_ends" in capfd.readouterr().err


def test_file_that_cannot_be_loaded_is_a_complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test_broken.py"
    file.write_text("import no_such_module")

    assert main([str(file), "--results", str(tmp_path / "results")]) == 1
    assert "NOT LOADED test_broken: ModuleNotFoundError" in capsys.readouterr().out


def test_rows_are_strict() -> None:
    verdict = Verdict([Gap("file::Some.test_known* file::Some.test_gone", "notyet", "why")])
    known, unknown, passed = (
        Result("file::Some.test_known_a", Outcome.FAILED),
        Result("file::Some.test_other", Outcome.CRASHED, "signal 11"),
        Result("file::Some.test_known_b", Outcome.PASSED),
    )

    assert verdict.on(known) is None
    assert verdict.on(unknown) == "CRASHED file::Some.test_other: signal 11"
    assert "test_known_b" in (verdict.on(passed) or "")
    assert list(verdict.on_rows([known])) == ["ROW file::Some.test_gone: no such test"]
    assert not list(verdict.on_rows([Result("another::Some.test", Outcome.PASSED)]))


def test_rows_give_reasons() -> None:
    for gap in GAPS:
        assert gap.status in ("notyet", "upstream", "never")
        assert gap.why
        assert gap.patterns


def test_parts_make_the_whole() -> None:
    assert part("3/8") == (3, 8)
    assert part("today/8").number in range(8)
    with pytest.raises(ValueError):
        part("3")


def test_what_the_wheel_carries_is_there() -> None:
    assert all(file.is_file() for file in CARRIED)
