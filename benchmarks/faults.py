"""What each process of a run does after one of them has gone wrong, as a table in Markdown.

    python benchmarks/faults.py [--limit 6] [--ways SIGKILL diverges restarts] [--ranks 4] [--out FILE]

Five processes on this host, by `env://` (rank 0 keeps the store and JAX's coordinator). One goes wrong after
it has agreed on a collective; the others are where the columns say. See `tests/processes/faulty_run.py` of
torch-pjrt-spmd. A rank that diverges (`diverging_run.py`) is found by the others at the next check of
parameters, every 10 steps: of it, seconds to the error that each process raises. `restarts`: torchrun with
`--max-restarts 1` and two processes (`elastic_run.py`), of which rank 1 is killed in step 7.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "packages/spmd/tests/processes"), str(ROOT / "tests/helpers")]

import elastic_run  # noqa: E402
import several  # noqa: E402
from fault_cases import WAYS, Ended, run  # noqa: E402

PLACES = ("waiting", "collective", "alone", "exit")


def last_error(one: Ended) -> str:
    """What the process printed last of an error, in one line."""
    found = re.findall(r"(?:^|\n)(?:\[rank\d\]: )?[\w.]*?(\w*(?:Error|Mishap)): (.*)", one.err)
    if not found:
        return ""
    name, text = found[-1]
    if name == "PeerError" and text.endswith("interrupted."):
        about = re.search(r"\n    (rank \d .*|The run's store .*)", one.err)
        text = f"{text} {about[1] if about else ''}"
    return f"{name}: {text}".replace(f"{ROOT}/packages/spmd/tests/processes/", "").strip()


def diverging(faulty: int) -> tuple[list[str], str]:
    """After how many seconds each of the others was told that a rank diverges, and what one printed."""
    ended = several.run("diverging_run.py", 5, str(faulty), timeout_s=240)
    begun = float(re.findall(r"^FAULT (\S+)$", ended[faulty].out, re.MULTILINE)[0])
    others = [one for rank, one in enumerate(ended) if rank != faulty]
    told = [float(re.findall(r"^TOLD (\S+)$", one.out, re.MULTILINE)[0]) for one in others]
    said = re.findall(r"Diverged: (.*)", others[0].err)
    return [f"{t - begun:.1f} s, {one.status}" for t, one in zip(told, others, strict=True)], said[
        -1
    ]


def restarting(death: int = 7) -> str:
    """What torchrun made of a rank that was killed, in a line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = elastic_run.run(folder, death)
        fault, *again = [
            float(t) for t in re.findall(r"^(?:FAULT|AGAIN) (\S+)$", done.stdout, re.M)
        ]
        lines = [line.split()[:2] for line in (folder / "batches.0").read_text().splitlines()]
        weights = torch.load(folder / "weights.pt", weights_only=True)
    steps = {a: [int(step) for attempt, step in lines if attempt == a] for a in ("0", "1")}
    apart = (weights - elastic_run.weights_without_a_restart()).abs().max().item()
    return (
        f"torchrun ended with {done.returncode}. Steps of the first attempt: {steps['0'][0]} to "
        f"{steps['0'][-1]}; of the second {steps['1'][0]} to {steps['1'][-1]}, of which the first was done "
        f"{max(again) - fault:.1f} s after the fault. The weights differ by {apart:.1e} at most from those "
        "of one process on the CPU without a fault."
    )


def main() -> None:
    """Run the cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=6.0, help="TORCH_PJRT_PEER_TIMEOUT, seconds")
    parser.add_argument("--ways", nargs="*", default=[*WAYS, "diverges", "restarts"])
    parser.add_argument("--ranks", nargs="*", type=int, default=[0, 4], help="which goes wrong")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, words = [], []
    ways = [how for how in options.ways if how != "restarts"]
    for faulty in options.ranks:
        for how in ways:
            if how == "diverges":
                cells, said = diverging(faulty)
                rows.append(f"| {faulty} | {how} | {' | '.join(cells)} |")
                words.append(f"- rank {faulty} {how}: `Diverged: {said}`")
                print(rows[-1], words[-1], sep="\n", flush=True)
                continue
            ended = run(how, faulty, options.limit, options.limit + 40)
            cells = [f"{ended[p].seconds:.1f} s, {ended[p].status}" for p in PLACES]
            rows.append(f"| {faulty} | {how} | {' | '.join(cells)} |")
            for place in ("waiting", "collective"):
                words.append(f"- rank {faulty} {how}, {place}: `{last_error(ended[place])}`")
            print(rows[-1], *words[-2:], sep="\n", flush=True)
    if "restarts" in options.ways:
        words.append(f"- {restarting()}")
        print(words[-1], flush=True)
    head = f"| faulty rank | what it does | {' | '.join(PLACES)} |"
    text = "\n".join([head, "|" + "---|" * (2 + len(PLACES)), *rows, "", *words])
    if options.out:
        options.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
