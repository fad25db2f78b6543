"""What checkpoints cost, as tables in Markdown.

    python benchmarks/checkpoints.py [--saves 15] [--out benchmarks/results/checkpoints.md]

Steps and saves of the demo's GPT, and of larger ones, take turns in one process, so that both see the same
machine; medians. *Blocked* is how long `save` keeps its caller, after the device is idle: what is waited for
would have been computed anyway; *CPU* is how much of it the thread worked, the rest waited for a core.
*Complete* is when the checkpoint is there.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from torch_pjrt_fsdp import CheckpointManager, load_checkpoint  # noqa: E402
from train_gpt import GPT, LENGTH, loss_of, make_batches, read_text  # noqa: E402

SIZES = {
    "demo: 4 layers, width 128": {"layers": 4, "width": 128, "heads": 4},
    "6 layers, width 384": {"layers": 6, "width": 384, "heads": 6},
    "8 layers, width 768": {"layers": 8, "width": 768, "heads": 8},
}
PARAMETERS_7B = 6_738_415_616  # of Llama-2-7B
MEASURED = """
import sys
from torch_pjrt_fsdp import export_safetensors
from torch_pjrt_fsdp.checkpoint.stored import Stored

def peak():
    with open("/proc/self/status") as status:
        found = next(int(l.split()[1]) * 1024 for l in status if l.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return found

export_safetensors(sys.argv[2], sys.argv[3] + ".first")
peak()
before = peak()
export_safetensors(sys.argv[1], sys.argv[3], most_bytes=100_000_000)
largest = max(tensor.n_bytes for tensor in Stored(sys.argv[1]).tensors.values())
print(peak() - before, largest)
"""


def trained(sizes: dict[str, int], saves: int, folder: Path) -> dict[str, Any]:
    """Steps and saves in turns: what each took, in seconds, and how many bytes there are."""
    torch.manual_seed(0)
    model = GPT(length=LENGTH, vocabulary=256, dropout=0.0, **sizes).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = make_batches(read_text()[0])
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    pjrt: Any = torch.pjrt  # type: ignore[attr-defined]

    def step() -> float:
        begun = time.perf_counter()
        loss_of(model, next(batches), "pjrt").backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        pjrt.synchronize()
        return time.perf_counter() - begun

    for _ in range(4):
        step()
    found: dict[str, Any] = {"step": [], "after": [], "blocked": [], "complete": [], "own": []}
    with CheckpointManager(folder, keep=2) as manager:
        for number in range(saves + 1):
            found["step"].append(step())
            begun, at_work = time.perf_counter(), time.thread_time()
            manager.save(number, state)
            found["own"].append(time.thread_time() - at_work)
            found["blocked"].append(manager.blocked_s)
            found["after"].append(step())  # while the other process writes
            manager.wait()
            found["complete"].append(time.perf_counter() - begun)
        path = manager.path(saves)
    found["first"] = found["blocked"].pop(0)
    begun = time.perf_counter()
    load_checkpoint(state, path)
    pjrt.synchronize()
    found["load"] = [time.perf_counter() - begun]
    found["parameters"] = sum(p.numel() for p in model.parameters())
    found["bytes"] = sum(file.stat().st_size for file in Path(path).iterdir())
    found["path"] = path
    return found


def host_memory(path: str, folder: Path) -> tuple[int, int]:
    """The most that a process's memory grows in exporting a checkpoint, and the largest tensor's bytes."""
    from torch_pjrt_fsdp import save_checkpoint

    save_checkpoint({"model": {"x": torch.ones(2)}}, folder / "small")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            MEASURED,
            path,
            str(folder / "small"),
            str(folder / "m.safetensors"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, largest = map(int, done.stdout.split())
    return grown, largest


def copied_per_second() -> float:
    """Bytes of memory that the host copies in a second, into memory that was there before."""
    source = torch.ones(1 << 26)
    into = torch.zeros(1 << 26)
    times = []
    for _ in range(7):
        begun = time.perf_counter()
        into.copy_(source)
        times.append(time.perf_counter() - begun)
    return source.nbytes / statistics.median(times)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=15)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the sizes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        "| GPT | parameters | checkpoint | step | blocked | of a step | CPU | first | complete | load |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    grown = largest = 0
    with tempfile.TemporaryDirectory() as place:
        for n, (name, sizes) in enumerate([*SIZES.items()][: options.sizes]):
            saves = options.saves if n == 0 else max(options.saves // 3, 2)
            found = trained(sizes, saves, Path(place, str(n)))
            middle = {k: statistics.median(v) for k, v in found.items() if isinstance(v, list)}
            ms = {k: f"{1000 * v:.1f} ms" for k, v in middle.items()}
            lines.append(
                f"| {name} | {found['parameters'] / 1e6:.1f}M | {found['bytes'] / 1e6:.0f} MB "
                f"| {ms['step']} | "
                f"{ms['blocked']} | {100 * middle['blocked'] / middle['step']:.1f} % | {ms['own']} | "
                f"{1000 * found['first']:.0f} ms | {ms['complete']} | {ms['load']} |"
            )
            print(lines[-1], f"(step while it is written: {ms['after']})", flush=True)
            grown, largest = host_memory(found["path"], Path(place))
    rate = copied_per_second()
    of_7b = PARAMETERS_7B * 12
    lines += [
        "",
        f"Exporting the last of them: the host's memory grew by {grown / 1e6:.1f} MB at most; the largest "
        f"tensor has {largest / 1e6:.1f} MB, so that is {grown / largest:.2f} times as much.",
        "",
        f"The host copies {rate / 1e9:.1f} GB/s here. A model of 7B parameters with AdamW has "
        f"{of_7b / 1e9:.0f} GB of state in float32: {of_7b / 8 / 1e9:.1f} GB on each of eight hosts, "
        f"{of_7b / 8 / rate:.1f} s at this rate.",
    ]
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
