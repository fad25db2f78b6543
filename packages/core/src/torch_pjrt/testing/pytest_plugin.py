"""The pytest plugin for authors of devices: what works on a device, as tests and as a table.

    pytest --pjrt-device NAME --pyargs torch_pjrt.testing.device_suite
    pytest --pjrt-device NAME --pjrt-operators 'linalg.*' --pyargs torch_pjrt.testing.device_suite

It also sets PJRT_DEVICE for tests of one's own.
"""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from typing import Any

import pytest

# One operator of each kind; all of PyTorch's are `--pjrt-operators '*'`, which takes hours.
_SOME = """
    add mul div exp tanh sin where clamp sum mean amax std cumsum softmax log_softmax matmul bmm
    nn.functional.linear nn.functional.conv2d nn.functional.max_pool2d nn.functional.layer_norm
    nn.functional.gelu nn.functional.embedding nn.functional.cross_entropy
    nn.functional.scaled_dot_product_attention sort topk gather scatter_add index_select index_put cat
    split permute expand as_strided tril arange full linalg.cholesky linalg.qr fft.fft
    """
SOME = _SOME.split()
_KIND = "pjrt kind"
_counts: Counter[tuple[str, str]] = Counter()
_reasons: dict[tuple[str, str], None] = {}  # why tests of a kind were skipped, in order


def pytest_addoption(parser: Any) -> None:
    """The two options."""
    group = parser.getgroup("torch-pjrt")
    group.addoption(
        "--pjrt-device", metavar="NAME", help="the device to test, as PJRT_DEVICE names it"
    )
    group.addoption(
        "--pjrt-operators",
        metavar="PATTERN",
        help="operators of PyTorch's op_db to check (`linalg.*`); one of each kind unless given",
    )


def pytest_configure(config: Any) -> None:
    """Before anything is imported that would start a device."""
    if name := config.getoption("--pjrt-device"):
        os.environ["PJRT_DEVICE"] = name


def pytest_generate_tests(metafunc: Any) -> None:
    """A test that takes an `operator_case` runs for each operator, kind and dtype."""
    if "operator_case" not in metafunc.fixturenames:
        return
    import torch  # noqa: F401  registers the device first

    from torch_pjrt.testing.conformance.cases import cases_of, operators

    pattern = metafunc.config.getoption("--pjrt-operators")
    chosen = (
        fnmatch.filter(operators(), pattern) if pattern else [n for n in SOME if n in operators()]
    )
    cases = [case for name in chosen for case in cases_of(name, ("forward", "gradient", "inplace"))]
    metafunc.parametrize("operator_case", cases, ids=str)


@pytest.fixture
def pjrt_kind(request: pytest.FixtureRequest) -> Any:
    """Files the test under a line of the table."""

    def file_under(kind: str) -> None:
        request.node.user_properties.append((_KIND, kind))

    return file_under


def pytest_runtest_logreport(report: Any) -> None:
    """Count by line of the table."""
    if report.when != "call" and not (report.when == "setup" and report.outcome != "passed"):
        return
    for name, kind in report.user_properties:
        if name == _KIND:
            known = hasattr(report, "wasxfail")
            _counts[kind, "known gap" if known else report.outcome] += 1
            if report.outcome == "skipped" and not known and isinstance(report.longrepr, tuple):
                _reasons[kind, report.longrepr[2].removeprefix("Skipped: ")] = None
        if name == "ran on the host":
            _counts[kind, "on the host"] += 1


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """The table."""
    if not config.getoption("--pjrt-device") or not _counts:
        return
    outcomes = ("passed", "failed", "skipped", "known gap", "on the host")
    kinds = sorted({kind for kind, _ in _counts})
    width = max(map(len, kinds))
    terminalreporter.section(f"What works on {config.getoption('--pjrt-device')}")
    terminalreporter.write_line(f"{'':{width}}  " + "  ".join(f"{o:>11}" for o in outcomes))
    for kind in kinds:
        row = "  ".join(f"{_counts[kind, o] or '':>11}" for o in outcomes)
        terminalreporter.write_line(f"{kind:{width}}  {row}")
    for kind, reason in _reasons:
        terminalreporter.write_line(f"{kind}: {reason}")
