"""The command: `python -m torch_pjrt.testing.fuzz`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch_pjrt.testing.child import Child, answers, environment
from torch_pjrt.testing.fuzz.kinds import KINDS

_OF_A_CHILD = 400  # programs; what is compiled stays in memory
_LONGEST_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run programs until time is up; 0 if none differed, crashed or hung."""
    options = _parser().parse_args(argv)
    if options.worker:
        _work(options.device)
        return 0
    if options.show is not None:
        return _show(options.kinds[0], options.show, options.device)
    end = time.monotonic() + options.minutes * 60
    seed, ran, found = options.seed, Counter[str](), 0
    while time.monotonic() < end:
        child = Child(
            ["-m", "torch_pjrt.testing.fuzz", "--worker", "--device", options.device],
            environment(),
        )
        try:
            for _ in range(_OF_A_CHILD):
                kind = options.kinds[seed % len(options.kinds)]
                child.ask([kind, seed])
                try:
                    answer = child.answer(_LONGEST_S)
                except TimeoutError:
                    answer = {"what": f"hung for {_LONGEST_S:g} s", "end": True}
                if answer is None:
                    answer = {"what": f"crashed: {child.how_it_ended()}", "end": True}
                ran[kind] += 1
                if answer["what"] is not None:
                    found += 1
                    line = f"{kind} {seed}: {answer['what']}"
                    print(line, flush=True)
                    if options.results is not None:
                        with options.results.open("a") as file:  # pyright: ignore[reportGeneralTypeIssues]
                            file.write(line + "\n")
                seed += 1
                if answer.get("end") or time.monotonic() > end:
                    break
        finally:
            child.stop()
    counts = ", ".join(f"{n} {kind}" for kind, n in sorted(ran.items()))
    print(
        f"{sum(ran.values())} programs ran ({counts}); {found or 'none'} differed; next seed {seed}"
    )
    return 1 if found else 0


def _show(kind: str, seed: int, device: str) -> int:
    """Print one program, what differs in it, and where first."""
    from torch_pjrt.testing.fuzz.judge import drawn, judge, shrunk

    made = drawn(kind, seed)
    what = judge(made, device)
    print(shrunk(made, device) if what else made)
    print(what or "no difference")
    return 1 if what else 0


def _work(device: str) -> None:
    faulthandler.enable()
    out = answers()
    warnings.simplefilter("ignore")
    from torch_pjrt.testing.fuzz.judge import drawn, judge

    for line in sys.stdin:
        kind, seed = json.loads(line)
        try:
            what = judge(drawn(kind, seed), device)
        except Exception as error:
            what = f"the fuzzer raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        out.write(json.dumps({"what": what}) + "\n")
        out.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_pjrt.testing.fuzz",
        description="Random programs on a device and on the CPU, compared.",
    )
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, metavar="M", help="how long (5)")
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of the first program; the next has the next",
    )
    add(
        "--kinds",
        nargs="+",
        choices=KINDS,
        default=list(KINDS),
        metavar="KIND",
        help=", ".join(KINDS),
    )
    add("--device", default="pjrt", help="PyTorch's name of the device")
    add("--results", type=Path, metavar="FILE", help="append what differs to a file, too")
    add(
        "--show", type=int, metavar="SEED", help="print the program of the first kind and this seed"
    )
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
