"""The command: `python -m torch_pjrt.testing.conformance`."""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from torch_pjrt.testing.conformance import page
from torch_pjrt.testing.conformance.cases import DTYPES, KINDS, Case, cases_of, operators
from torch_pjrt.testing.conformance.check import Result
from torch_pjrt.testing.conformance.pool import check_all
from torch_pjrt.testing.conformance.record import Record
from torch_pjrt.testing.conformance.verdict import Verdict
from torch_pjrt.testing.parts import part
from torch_pjrt.testing.results import begin_results, read_results, write_result


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments say; 0 if nothing but what `gaps.py` lists failed."""
    options = _options(argv)
    record = Record(options.record, f"{datetime.now(UTC):%Y-%m-%d}") if options.record else None
    cases = [c for c in _chosen(options) if record is None or c.operator not in record.rows]
    known: dict[Case, Result] = {}
    if options.resume:
        known = {r.case: r for r in read_results(options.results, lambda d: Result(**d))}
    waiting = [case for case in cases if case not in known]
    print(f"{len(cases)} cases, {len(cases) - len(waiting)} of them known; {options.results}")
    results = [known[case] for case in cases if case in known]
    if record:
        for result in results:
            record.add(result)
    start = time.monotonic()
    verdict = Verdict()
    with begin_results(options.results, (result.as_dict() for result in known.values())) as file:
        for result in check_all(
            waiting, options.device, options.workers, from_disk=options.from_disk
        ):
            write_result(file, result.as_dict())
            results.append(result)
            if record:
                record.add(result)
            if complaint := verdict.on(result):
                print(complaint, flush=True)
    seconds = time.monotonic() - start
    complaints = [c for r in results if (c := verdict.on(r))]
    of_rows = list(verdict.on_rows(results, whole=record is None and _is_whole(options)))
    print("\n".join([*of_rows, *page.summary(results)]))
    if options.from_disk:
        print(page.from_disk(results))
    print(f"{len(waiting)} cases in {seconds:.0f} s; {len(complaints) + len(of_rows)} complaints")
    if options.page is not None:
        options.page.write_text(page.markdown(results))
    return 1 if complaints or of_rows else 0


def _chosen(options: argparse.Namespace) -> list[Case]:
    names: Iterable[str] = operators()
    if options.operators:
        names = [n for n in names if any(fnmatch.fnmatch(n, p) for p in options.operators)]
        if not names:
            sys.exit(f"no operator of PyTorch's op_db matches {' '.join(options.operators)}")
    if options.part:
        k, n = options.part
        names = [name for name in names if zlib.crc32(name.encode()) % n == k]
        print(f"part {k}/{n} of the operators: {', '.join(names)}")
    return [
        case
        for name in names
        for case in cases_of(name, options.kinds)
        if case.dtype not in DTYPES or case.dtype in options.dtypes
    ]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.record and not (
        set(options.kinds) == set(KINDS) and set(options.dtypes) == set(DTYPES)
    ):
        parser.error("--record has rows of whole operators: leave --kinds and --dtypes out")
    return options


def _is_whole(options: argparse.Namespace) -> bool:
    return not options.operators and not options.part and set(options.kinds) == set(KINDS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_pjrt.testing.conformance",
        description="Compare a device with PyTorch on CPU, by all samples of PyTorch's op_db.",
    )
    add = parser.add_argument
    add("operators", nargs="*", help="names or patterns of op_db's entries (all): 'linalg.*'")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS)
    add("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    add(
        "--part",
        type=part,
        metavar="K/N",
        help="one of N parts of the operators; `today/N`: by date",
    )
    add(
        "--from-disk",
        action="store_true",
        help="check each case in a process that loads the programs which another one has compiled",
    )
    add("--device", default="pjrt", help="PyTorch's name of the device")
    add("--workers", type=int, default=os.cpu_count(), metavar="N", help="processes side by side")
    add("--results", type=Path, default=Path("build/conformance.jsonl"), metavar="FILE")
    add("--resume", action="store_true", help="go on where the run that wrote the results stopped")
    add(
        "--record",
        type=Path,
        metavar="FILE",
        help="leave out operators that have a row in this page, and write a row for each that is done",
    )
    add("--page", type=Path, metavar="FILE", help="write the coverage page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
