"""The command: `python -m torch_pjrt_spmd.testing.distributed_suite`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from torch_pjrt.testing.parts import Part, part
from torch_pjrt.testing.pytorch_suite.outcomes import Result
from torch_pjrt.testing.pytorch_suite.verdict import Verdict
from torch_pjrt.testing.results import begin_results, read_results, write_result
from torch_pjrt_spmd.testing.distributed_suite.checkout import FOLDERS, files_of
from torch_pjrt_spmd.testing.distributed_suite.checkout_gaps import CHECKOUT_GAPS
from torch_pjrt_spmd.testing.distributed_suite.gaps import GAPS
from torch_pjrt_spmd.testing.distributed_suite.team import Team

FILES = ("distributed", "dtensor", "fsdp")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments say; 0 if nothing but what `gaps.py` lists failed."""
    options = _parser().parse_args(argv)
    if options.device:
        os.environ["PJRT_DEVICE"] = options.device
    files = [name for name in options.files or FILES if name in FILES]
    if options.checkout:
        files = [str(f) for f in files_of(options.checkout, options.files)]
        if not files:
            sys.exit(f"{options.checkout} has no such files of tests")
    elif wrong := sorted(set(options.files) - set(FILES)):
        sys.exit(f"there is no file {', '.join(wrong)}; there are {', '.join(FILES)}")
    verdict = Verdict([*GAPS, *CHECKOUT_GAPS])
    not_loaded: list[str] = []
    known: dict[str, Result] = {}
    if options.resume:
        known = {r.test: r for r in read_results(options.results, Result.of_dict)}
    start = time.monotonic()
    results: list[Result] = []
    n_run = 0
    with begin_results(options.results, (r.as_dict() for r in known.values())) as kept:
        for file in files:
            try:
                sizes = _sizes(file, options.processes)
            except RuntimeError as error:
                not_loaded.append(f"NOT LOADED {file}: {error}")
                print(not_loaded[-1], flush=True)
                continue
            for size, names in sizes.items():
                tests = [t for t in names if _is_chosen(t, options.tests, options.part)]
                results += [known[t] for t in tests if t in known]
                waiting = [t for t in tests if t not in known]
                team = partial(Team, file, max(1, min(size, options.processes)), options.processes)
                for result in _run(team, waiting, verdict, options.timeout, options.once):
                    n_run += 1
                    write_result(kept, result.as_dict())
                    results.append(result)
                    if complaint := verdict.on(result):
                        print(complaint, flush=True)
    complaints = not_loaded + [c for r in results if (c := verdict.on(r))]
    if not options.tests and options.part is None:
        complaints += (rows := list(verdict.on_rows(results)))
        print("\n".join(rows))
    print("\n".join(verdict.table(results)))
    seconds = time.monotonic() - start
    print(f"{n_run} tests in {seconds:.0f} s; {len(complaints)} complaints; {options.results}")
    return 1 if complaints else 0


def _sizes(file: str, processes: int) -> Mapping[int, list[str]]:
    """A file's tests, by how many processes they want."""
    lister = Team(file, 1, processes)
    try:
        sizes: dict[int, list[str]] = {}
        for name, size in lister.tests().items():
            sizes.setdefault(size, []).append(f"{Path(file).stem}::{name}")
        return dict(sorted(sizes.items()))
    finally:
        lister.stop()


def _run(
    new_team: Callable[[], Team],
    tests: Sequence[str],
    verdict: Verdict,
    timeout_s: float,
    once: bool,
) -> Iterator[Result]:
    """A team runs on until a test fails. One that fails, and no row knows of it, is tried again alone."""
    if not tests:
        return
    team = new_team()
    try:
        for test in tests:
            name = test.partition("::")[2]
            if not team.goes_on:
                team = team.replaced()
            result = team.run(name, timeout_s)
            if result.failed and team.n_run > 1 and not once and verdict.on(result):
                team = team.replaced()
                result = team.run(name, timeout_s)
            yield result
    finally:
        team.stop()


def _is_chosen(test: str, patterns: Sequence[str], share: Part | None) -> bool:
    if patterns and not any(fnmatchcase(test.partition("::")[2], p) for p in patterns):
        return False
    return share is None or zlib.crc32(test.encode()) % share.of == share.number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_pjrt_spmd.testing.distributed_suite",
        description="Run PyTorch's tests of torch.distributed, DDP, DTensor and FSDP on a device, in several "
        "processes that may crash or hang.",
    )
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help=f"of {', '.join(FILES)}, or of the checkout")
    add(
        "--checkout",
        type=Path,
        metavar="DIR",
        help="of PyTorch, of the version that is installed: run its files in "
        f"{' and '.join(FOLDERS)}, or those named",
    )
    add("--tests", nargs="+", default=(), metavar="NAME", help="only these (`*` allowed)")
    add("--part", type=part, metavar="K/N", help="one of N parts of the tests; `today/N`: by date")
    add("--processes", type=int, default=2, metavar="N", help="of a run (2)")
    add("--timeout", type=float, default=90.0, metavar="S", help="seconds of a test (90)")
    add("--device", metavar="NAME", help="the device, as PJRT_DEVICE names it")
    add(
        "--once", action="store_true", help="try no test that fails again alone, in fresh processes"
    )
    add("--results", type=Path, default=Path("build/distributed_suite.jsonl"), metavar="FILE")
    add("--resume", action="store_true", help="go on where the run that wrote the results stopped")
    return parser


if __name__ == "__main__":
    sys.exit(main())
