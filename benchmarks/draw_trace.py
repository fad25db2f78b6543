"""A picture of what `torch_pjrt.profile()` writes: two training steps of the example's GPT, host and device.

python benchmarks/draw_trace.py docs/training-step.png          # trace, then draw
python benchmarks/draw_trace.py docs/training-step.png trace    # draw the trace in that folder
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

Event = dict[str, Any]

FIRST_STEP, LAST_STEP = "1", "2"
COLORS = {
    "step": "#dddddd",
    "modules": "#7aa6c2",
    "phases": "#e39c54",
    "XLA": "#79a968",
}


def take_trace(folder: Path) -> None:
    """Train the example's GPT, and trace some steps after the first ones have compiled."""
    import torch_pjrt
    import train_gpt

    model = train_gpt.build_model().to("pjrt")
    text, _ = train_gpt.read_text()
    losses = train_gpt.train(model, train_gpt.make_batches(text), 20, "pjrt")
    for _ in range(5):
        next(losses)
    with torch_pjrt.profile(folder):
        for _ in range(4):
            next(losses)


def read(folder: Path) -> list[Event]:
    """The trace's complete events."""
    file = max(folder.glob("**/perfetto_trace.json.gz"))
    with gzip.open(file) as opened:
        return [e for e in json.load(opened)["traceEvents"] if e.get("ph") == "X"]


def rows(events: list[Event]) -> Iterator[tuple[str, str, list[Event]]]:
    """What is drawn: label, color's name, events."""
    yield "steps", "step", [e for e in events if e["name"] == "step"]
    named = [e for e in events if e["name"].split("/")[0] == "GPT"]
    for depth, label in enumerate(("model", "blocks", "layers", "within attention")):
        yield label, "modules", [e for e in named if e["name"].count("/") == depth]
    for label, phases in (
        ("pjrt::sync", ("pjrt::sync", "pjrt::last_sync")),
        ("pjrt::launch", ("pjrt::launch",)),
        ("transfers", ("pjrt::upload", "pjrt::download")),
    ):
        yield label, "phases", [e for e in events if e["name"] in phases]
    yield "XLA", "XLA", [e for e in events if "hlo_op" in e.get("args", {})]


def draw(folder: Path, picture: Path) -> None:
    """One row a kind of event, time from left to right."""
    events = read(folder)
    steps = {e["args"]["step_num"]: e for e in events if e["name"] == "step"}
    start = steps[FIRST_STEP]["ts"]
    end = steps[LAST_STEP]["ts"] + steps[LAST_STEP]["dur"]
    figure, axes = pyplot.subplots(figsize=(11, 3.6), constrained_layout=True)
    labels = []
    for y, (label, color, some) in enumerate(rows(events)):
        labels.append(label)
        for event in some:
            _bar(axes, event, y, COLORS[color], start, end)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, (end - start) / 1e3)
    axes.set_xlabel("ms")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(picture, dpi=110)


def _bar(axes: Axes, event: Event, y: int, color: str, start: float, end: float) -> None:
    left, right = max(event["ts"], start), min(event["ts"] + event["dur"], end)
    if left >= right:
        return
    left_ms, width_ms = (left - start) / 1e3, (right - left) / 1e3
    axes.barh(y, width_ms, 0.8, left_ms, color=color, edgecolor="white", linewidth=0.3)
    text = event["name"].split("/")[-1].removeprefix("pjrt::")
    if text == "step":
        text = f"step {event['args']['step_num']}"
    share = (right - left) / (end - start)
    if share > 0.009 * len(text):
        axes.text(left_ms + width_ms / 2, y, text, ha="center", va="center", fontsize=7)


def main() -> None:
    picture = Path(sys.argv[1])
    if len(sys.argv) > 2:
        draw(Path(sys.argv[2]), picture)
        return
    with tempfile.TemporaryDirectory() as folder:
        take_trace(Path(folder))
        draw(Path(folder), picture)


if __name__ == "__main__":
    main()
