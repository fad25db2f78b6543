"""Training steps of several models, in several ways: ours, hand-written JAX, PyTorch's, and others'.

    python benchmarks/training_steps                                 # all models, all ways that can run here
    python benchmarks/training_steps narrow-gpt --ways jax pjrt

Each contestant is a process of its own, started alone, with nothing on disk; then once more, with what
the first left there. Rounds of steps follow in turns, so that all see the same weather on a shared
machine. All start from the same weights and see the same batches, and the first losses must agree.

Ways that need packages that do not install beside ours run under the interpreters that
PYTHON_WITH_TORCH_XLA and PYTHON_WITH_TORCHAX name; without those variables they are left out. So are
those of an older version of ours, unless TREE_BEFORE names a checkout of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from models import WORKLOADS, write_data
from race import Result, as_json, disagreement, race, ratio, why_not
from ways import WAYS

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
OURS = 'PyTorch, "pjrt"'
TOLERANCE = 1e-3  # relative; sums run in another order in each contestant


def row(result: Result, base: Result) -> list[str]:
    """The cells of a contestant."""
    return [
        WAYS[result.way].title,
        f"{statistics.median(result.trace_ms):.1f}" if result.trace_ms else "",
        f"{statistics.median(result.host_ms):.1f}",
        f"{statistics.median(result.step_ms):.1f}",
        f"{ratio(result, base):.2f}",
        f"{result.programs:g}" if result.programs else "",
        f"{result.first_s:.1f}",
        f"{result.again_s:.1f}",
        f"{result.call_s:.2f}",
        f"{result.call_again_s:.2f}",
        f"{result.preparing_s:.2f}",
        f"{result.peak_mb:.0f}",
        f"{disagreement(result, base):.0e}",
    ]


HEADINGS = (
    "",
    "trace, ms",
    "host, ms",
    "step, ms",
    "to the first",
    "programs",
    "start, s",
    "again, s",
    "first step, s",
    "again, s",
    "preparing, s",
    "memory, MB",
    "losses differ",
)


def show(title: str, results: Sequence[Result], skipped: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}; {os.cpu_count()} cores")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for result in results:
        table.add_row(*row(result, results[0]))
    console = Console(width=150)
    console.print(table)
    for way, why in skipped.items():
        console.print(f"{WAYS[way].title}: {why}", markup=False)


def draw(title: str, results: Sequence[Result], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    labels = [WAYS[r.way].title for r in results]
    colors = ["tab:orange" if WAYS[r.way].title.startswith(OURS) else "tab:gray" for r in results]
    panels = {
        "step, ms": [statistics.median(r.step_ms) for r in results],
        "start of the process to the end of the first step, s": [r.first_s for r in results],
        "the same, later": [r.again_s for r in results],
    }
    size = (13, 0.8 + 0.32 * len(results))
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, layout="constrained")
    for ax, (heading, values) in zip(axes, panels.items(), strict=True):
        ax.bar_label(ax.barh(labels, values, color=colors), fmt="%.1f", padding=3)
        ax.set_title(heading, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.margins(x=0.16)
    axes[0].invert_yaxis()
    figure.suptitle(f"{title}; {os.cpu_count()} cores", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Training steps of several models, in several ways."
    )
    parser.add_argument("workloads", nargs="*", metavar="MODEL", help=", ".join(WORKLOADS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="steps in a round")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for pictures")
    arguments = parser.parse_args()
    if unknown := set(arguments.workloads) - set(WORKLOADS):
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")

    skipped = {way: why for way in arguments.ways if (why := why_not(way))}
    ways = [way for way in arguments.ways if way not in skipped]
    wrong = []
    for name in arguments.workloads or WORKLOADS:
        workload = WORKLOADS[name]
        with tempfile.TemporaryDirectory() as folder:
            write_data(workload, Path(folder))
            results, stopped = race(name, ways, arguments.rounds, arguments.steps, Path(folder))
        show(workload.title, results, {**skipped, **stopped})
        draw(workload.title, results, arguments.results / f"{name}.svg")
        (arguments.results / f"{name}.json").write_text(json.dumps(as_json(results), indent=1))
        wrong += [
            f"{name}: {WAYS[r.way].title}"
            for r in results
            if disagreement(r, results[0]) > TOLERANCE
        ]
    if wrong:
        sys.exit(f"The first losses differ by more than {TOLERANCE}: {'; '.join(wrong)}.")


if __name__ == "__main__":
    main()
