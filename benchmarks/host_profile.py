"""Where the calling thread spends an unmodified step, in C++ and in Python, by Linux's `perf`.

    python benchmarks/host_profile.py [MODEL ...]

Each sample of the thread counts for one row, by the frames of its stack. Models are those of
`training_steps/`; their steps are the loop that people write, lazily.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "training_steps"))

from models import WORKLOADS
from ways import training

STEPS, WARM = 200, 12
# Wherever in a stack these are, a sample is for them.
ANYWHERE = {
    "gc_collect_main": "garbage collection",
    "PythonDeviceGuard": "PyTorch asks the device's guard, which is Python, for streams",
}
# Else the first of these says it, from the innermost frame on. Python has no names there: what lies within a
# kernel that PyTorch has called is ours, what lies outside is the script's, PyTorch's and ours.
INNERMOST = {
    "PjitFunction": "launching, JAX's part",
    "PythonKernelHolder": "our kernels, in Python",
    "Engine::execute": "PyTorch's backward and dispatcher, in C++",
    "at::_ops": "PyTorch's dispatcher and autograd, in C++",
    "THPVariable_": "PyTorch's dispatcher and autograd, in C++",
}
REST = "the script, modules, the optimizer and the end of a step, in Python"
RECORD = "perf record -q -F 900 --call-graph dwarf,32768 -o {} -t {}"
SCRIPT = "perf script --no-inline -F comm,ip,sym -i {}"


def kind_of(stack: list[str]) -> str:
    """What a sample is, by its frames, innermost first."""
    whole = " ".join(stack)
    kinds = [kind for name, kind in ANYWHERE.items() if name in whole]
    kinds += [kind for frame in stack for name, kind in INNERMOST.items() if name in frame]
    return kinds[0] if kinds else REST


def stacks(recorded: Path) -> Iterator[list[str]]:
    """The frames of each sample, innermost first."""
    script = SCRIPT.format(recorded).split()
    with subprocess.Popen(
        script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as read:
        stack: list[str] = []
        for line in read.stdout or ():
            if line.startswith("\t"):
                stack.append(line.strip().partition(" ")[2])
            elif not line.strip() and stack:
                yield stack
                stack = []


def profile(name: str) -> tuple[float, Counter[str]]:
    """Milliseconds that the thread computes in a step, without `perf`, and samples by kind, with it."""
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    train = training(workload, workload.build().to("pjrt").train())
    made = itertools.islice(workload.batches(), 4)
    batches = itertools.cycle([(x.to("pjrt"), y.to("pjrt")) for x, y in made])

    def steps(n: int) -> float:
        start = time.thread_time()
        for x, y in itertools.islice(batches, n):
            float(train(x, y))
        return (time.thread_time() - start) / n * 1e3

    steps(WARM)
    taken = steps(STEPS)
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder, "perf.data")
        record = RECORD.format(recorded, os.getpid()).split()
        perf = subprocess.Popen(record, stderr=subprocess.DEVNULL)
        time.sleep(1)
        steps(STEPS)
        perf.send_signal(signal.SIGINT)
        perf.wait()
        return taken, Counter(map(kind_of, stacks(recorded)))


def main() -> None:
    for name in sys.argv[1:] or ["narrow-gpt", "mlp", "resnet"]:
        taken, kinds = profile(name)
        print(f"\n{WORKLOADS[name].title}: {taken:.1f} ms a step\n\n| share | what |\n|--:|---|")
        for kind, n in kinds.most_common():
            print(f"| {n / kinds.total():.1%} | {kind} |")


if __name__ == "__main__":
    main()
