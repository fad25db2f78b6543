"""The command: `python -m torch_pjrt.testing.pytorch_suite`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from torch_pjrt.testing.parts import Part, part
from torch_pjrt.testing.pytorch_suite.outcomes import Result
from torch_pjrt.testing.pytorch_suite.pool import TESTS_OF_A_CHILD, NotLoaded, run_all
from torch_pjrt.testing.pytorch_suite.verdict import Verdict
from torch_pjrt.testing.results import begin_results, read_results, write_result

CARRIED = [
    Path(__file__).parent / "carried" / f"{name}.py"
    for name in ("modules", "optimizers", "operators")
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments say; 0 if nothing but what `gaps.py` lists failed."""
    options = _parser().parse_args(argv)
    if missing := [str(f) for f in options.files if not f.is_file()]:
        sys.exit(f"there is no file {', '.join(missing)}")
    if options.device:
        os.environ["PJRT_DEVICE"] = options.device
    known: dict[str, Result] = {}
    if options.resume:
        known = {r.test: r for r in read_results(options.results, Result.of_dict)}
    files = options.files or CARRIED
    verdict, results, complaints = Verdict(), [], []
    chosen: set[str] = set()

    def choose(tests: Sequence[str]) -> Sequence[str]:
        picked = [t for t in tests if _is_chosen(t, options.k, options.part)]
        chosen.update(picked)
        return picked

    start = time.monotonic()
    with begin_results(options.results, (result.as_dict() for result in known.values())) as file:
        n_each = options.tests_of_a_child
        for result in run_all(files, choose, known, options.timeout, options.workers, n_each):
            if isinstance(result, NotLoaded):
                complaints.append(f"NOT LOADED {result.file}: {result.why}")
                print(complaints[-1], flush=True)
                continue
            write_result(file, result.as_dict())
            results.append(result)
            if complaint := verdict.on(result):
                print(complaint, flush=True)
    seconds = time.monotonic() - start
    n_run = len(results)
    results += [r for r in known.values() if r.test in chosen]
    complaints += [c for r in results if (c := verdict.on(r))]
    if options.k is None and options.part is None:
        complaints += verdict.on_rows(results)
    print("\n".join([*(c for c in complaints if c.startswith("ROW")), *verdict.table(results)]))
    print(f"{n_run} tests in {seconds:.0f} s; {len(complaints)} complaints; {options.results}")
    return 1 if complaints else 0


def _is_chosen(test: str, pattern: str | None, share: Part | None) -> bool:
    if pattern is not None and not fnmatchcase(test, f"*{pattern}*"):
        return False
    return share is None or zlib.crc32(test.encode()) % share.of == share.number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_pjrt.testing.pytorch_suite",
        description="Run PyTorch's device-generic tests on a device, each where it may crash or hang.",
    )
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="files of a checkout's test/ folder that matches the installed PyTorch; without any, the "
        "tests of what PyTorch's wheel carries: its modules, optimizers, references, higher-order operators",
    )
    add("--device", metavar="NAME", help="the device, as PJRT_DEVICE names it")
    add(
        "-k",
        metavar="PATTERN",
        help="only tests whose `file::Class.name` has this in it (`*` allowed)",
    )
    add("--part", type=part, metavar="K/N", help="one of N parts of the tests; `today/N`: by date")
    add(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds that a test may take (600)",
    )
    add("--workers", type=int, default=os.cpu_count(), metavar="N", help="processes side by side")
    add(
        "--tests-of-a-child",
        type=int,
        default=TESTS_OF_A_CHILD,
        metavar="N",
        help="tests that a process runs before a fresh one goes on (300): many look for what only long "
        "processes meet; of one that crashes, all that it said is printed",
    )
    add("--results", type=Path, default=Path("build/pytorch_suite.jsonl"), metavar="FILE")
    add("--resume", action="store_true", help="go on where the run that wrote the results stopped")
    return parser


if __name__ == "__main__":
    sys.exit(main())
