"""What the process did so far, appended to a file."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from torch_xla import runtime
from torch_xla.debug import metrics

__all__ = ["save_metrics"]
_numbers = itertools.count()


def save_metrics(metrics_file: str | None = None) -> None:
    """Append `metrics_report()` to the file, under a number that grows; or print it, for `STDOUT`, `STDERR`.

    metrics_file    None: the variable XLA_METRICS_FILE, with the process's number behind it where there are
                    several; nothing, if it is not set.
    """
    if metrics_file is None:
        metrics_file = os.environ.get("XLA_METRICS_FILE")
        if metrics_file is None:
            return
        if runtime.world_size() > 1:
            metrics_file = f"{metrics_file}.{runtime.local_ordinal()}"
    text = f"[MetricsData; step={next(_numbers)}]\n{metrics.metrics_report()}\n"
    if metrics_file in ("STDOUT", "STDERR"):
        print(text, file=sys.stdout if metrics_file == "STDOUT" else sys.stderr)
    else:
        with Path(metrics_file).open("a") as file:
            file.write(text)
