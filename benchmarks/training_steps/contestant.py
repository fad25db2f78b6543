"""One contestant, in a process of its own: it answers each line of its input by a line of JSON.

first            take the first step: its loss, and the seconds it took
steps N          take N steps, and wait: their losses, and the seconds they took
single N         take N steps, and wait after each: medians of how long a call took to return, and of
                 what was recording; how many programs of ours ran for each
memory N         take N steps: what the process holds at most, less what it held before there was a model
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from models import WORKLOADS, read_data
from ways import WAYS, Traced


def resident_mb(field: str) -> float:
    """A figure of this process's memory, in MB: `VmRSS` is now, `VmHWM` the most since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"This system does not tell {field}.")


def forget_peak() -> None:
    """Start `VmHWM` anew, after giving back what is free: what compiling needed is no part of a step."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def programs_run() -> int:
    """How many programs this process has launched on `pjrt`."""
    module = sys.modules.get("torch_pjrt.observe.counters")
    return module.counters.programs_run if module is not None else 0


def serve(workload_name: str, way_name: str, folder: Path) -> None:
    """Answer until the input ends. The folder has the data, and takes what a way keeps on disk."""
    weights, batches = read_data(folder)
    turn = itertools.cycle(batches)
    workload, way, traced = WORKLOADS[workload_name], WAYS[way_name], Traced()
    gc.collect()
    before_mb = resident_mb("VmRSS")
    train: Any = None

    def take(steps: int) -> dict[str, Any]:
        start = time.perf_counter()
        losses = [train(*next(turn)) for _ in range(steps)]
        float(losses[-1])  # until it is done
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "losses": [float(loss) for loss in losses]}

    def single(steps: int) -> dict[str, Any]:
        host, recording = [], []
        launched = programs_run()
        for _ in range(steps):
            recorded, start = traced.seconds, time.perf_counter()
            loss = train(*next(turn))
            host.append(time.perf_counter() - start)
            float(loss)
            if traced.seconds is not None and recorded is not None:
                recording.append(traced.seconds - recorded)
        return {
            "host_ms": statistics.median(host) * 1e3,
            "trace_ms": statistics.median(recording) * 1e3 if recording else None,
            "programs": (programs_run() - launched) / steps,
        }

    def memory(steps: int) -> dict[str, Any]:
        forget_peak()
        take(steps)
        return {"peak_mb": resident_mb("VmHWM") - before_mb}

    answers = {"steps": take, "single": single, "memory": memory}
    for line in sys.stdin:
        command, _, number = line.strip().partition(" ")
        if command == "first":
            train = way.make(workload, weights, folder, traced)
            answer = take(1)
        else:
            answer = answers[command](int(number))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
