"""What looking for garbage costs a step: Python's own number of young objects, and ours, in turns.

    python benchmarks/garbage.py [--rounds 3] [MODEL ...]

Models and steps are those of `training_steps/`: the loop that people write, lazily and compiled.
Each is a process of its own. A look at all objects of a process comes once in many steps, so the mean of the
calling thread's time counts here, and not the median.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "training_steps"))

MODELS = ("narrow-gpt", "deep-gpt", "mlp", "resnet")
THRESHOLDS = {"Python's own": "0", "ours": "20000"}
STEPS, WARM = 120, 12


def contestant(name: str, is_compiled: bool) -> dict[str, float]:
    """Of a step: its mean and its median on the calling thread, in ms; looks at all objects in all steps."""
    import torch

    from models import WORKLOADS
    from ways import training

    workload = WORKLOADS[name]
    torch.manual_seed(0)
    train: Any = training(workload, workload.build().to("pjrt").train())
    if is_compiled:
        train = torch.compile(train, backend="pjrt")
    made = itertools.islice(workload.batches(), 4)
    batches = itertools.cycle([(x.to("pjrt"), y.to("pjrt")) for x, y in made])
    looks: list[int] = []
    gc.callbacks.append(
        lambda phase, info: looks.append(info["generation"]) if phase == "stop" else None
    )

    def steps(n: int) -> list[float]:
        taken = []
        for x, y in itertools.islice(batches, n):
            start = time.thread_time()
            float(train(x, y))
            taken.append((time.thread_time() - start) * 1e3)
        return taken

    steps(WARM)
    looks.clear()
    taken = steps(STEPS)
    return {
        "mean": statistics.mean(taken),
        "median": statistics.median(taken),
        "looks at all": looks.count(2),
        "looks": len(looks),
    }


def run(name: str, is_compiled: bool, threshold: str) -> dict[str, float]:
    """A contestant's process."""
    command = [
        sys.executable,
        __file__,
        "--contestant",
        name,
        *(["--compiled"] if is_compiled else []),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "TORCH_PJRT_GC_THRESHOLD": threshold},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant")
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()
    if args.contestant:
        print(json.dumps(contestant(args.contestant, args.compiled)))
        return
    print("| model | step | young objects | mean, ms | median, ms | looks at all | looks |")
    print("|---|---|---|--:|--:|--:|--:|")
    for name, is_compiled in itertools.product(args.models, (False, True)):
        runs: dict[str, list[dict[str, float]]] = {whose: [] for whose in THRESHOLDS}
        for _ in range(args.rounds):
            for whose, threshold in THRESHOLDS.items():
                runs[whose].append(run(name, is_compiled, threshold))
        for whose, found in runs.items():
            of = {key: statistics.median(each[key] for each in found) for key in found[0]}
            print(
                f"| {name} | {'compiled' if is_compiled else 'lazily'} | {whose} | {of['mean']:.1f} "
                f"| {of['median']:.1f} | {of['looks at all']:.0f} | {of['looks']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
