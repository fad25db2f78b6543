"""What each process of a run does after one of them has gone wrong, as a table in Markdown.

    python benchmarks/faults.py [--limit 6] [--ways SIGKILL raises] [--ranks 4] [--out FILE]

Five processes on this host, by `env://` (rank 0 keeps the store and JAX's coordinator). One goes wrong after
it has agreed on a collective; the others are where the columns say. See `tests/processes/faulty_run.py` of
torch-pjrt-spmd.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "packages/spmd/tests/processes"), str(ROOT / "tests/helpers")]

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


def main() -> None:
    """Run the cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=6.0, help="TORCH_PJRT_PEER_TIMEOUT, seconds")
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--ranks", nargs="*", type=int, default=[0, 4], help="which goes wrong")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, words = [], []
    for faulty in options.ranks:
        for how in options.ways:
            ended = run(how, faulty, options.limit, options.limit + 40)
            cells = [f"{ended[p].seconds:.1f} s, {ended[p].status}" for p in PLACES]
            rows.append(f"| {faulty} | {how} | {' | '.join(cells)} |")
            for place in ("waiting", "collective"):
                words.append(f"- rank {faulty} {how}, {place}: `{last_error(ended[place])}`")
            print(rows[-1], *words[-2:], sep="\n", flush=True)
    head = f"| faulty rank | what it does | {' | '.join(PLACES)} |"
    text = "\n".join([head, "|" + "---|" * (2 + len(PLACES)), *rows, "", *words])
    if options.out:
        options.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
