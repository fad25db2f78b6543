"""Memory of each chip and collectives of a training step of Llama-2-7B's shape, by way to spread it.

    python benchmarks/fsdp.py ahead --targets v5p:2x2x2 v5p:2x2x4    for slices of TPUs, ahead of time
    python benchmarks/fsdp.py here                                   a small one, on eight chips of the CPU

`ahead` needs `libtpu`. Each way is compiled in a process of its own, and prints a row in Markdown as it
is done. With `--planned` memory and collectives are those that libtpu has planned, and the code, which
takes most of the time, is not generated: all 32 layers take a minute or two where they are rolled.
Parameters and AdamW's moments are float32, layers compute in bfloat16 (`MixedPrecisionPolicy`), a chip
has `--sequences` of `--length` tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WAYS = (
    "plain",
    "fsdp",
    "fsdp, kept",
    "fsdp, remat",
    "fsdp, remat, rolled",
    "fsdp, offload",
    "fsdp, remat, offload",
    "fsdp, remat, rolled, offload",
    "fsdp, state offload",
    "hybrid",
    "2-d",
    "2-d, remat",
    "plain, rolled",
    "fsdp, rolled",
    "hybrid, rolled",
    "2-d, rolled",
    "hybrid, remat, rolled",
    "2-d, remat, rolled",
)


@dataclass(frozen=True)
class Shape:
    """Of a Llama: widths in elements, lengths in tokens."""

    width: int
    heads: int
    hidden: int
    vocabulary: int
    layers: int
    length: int


LLAMA_2_7B = Shape(4096, 32, 11008, 32000, 32, 2048)
SMALL = Shape(256, 8, 688, 512, 8, 128)


def model_of(shape: Shape, remat: bool, device: str) -> Any:
    """A Llama: RMS norms, rotary positions, attention, SwiGLU."""
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            w, h = shape.width, shape.hidden
            self.before, self.between = nn.RMSNorm(w), nn.RMSNorm(w)
            self.q, self.k, self.v, self.o = (nn.Linear(w, w, bias=False) for _ in range(4))
            self.gate, self.up = nn.Linear(w, h, bias=False), nn.Linear(w, h, bias=False)
            self.down = nn.Linear(h, w, bias=False)

        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            y = self.before(x)
            q, k, v = (
                f(y).unflatten(-1, (shape.heads, -1)).transpose(1, 2)
                for f in (self.q, self.k, self.v)
            )
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            y = self.between(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(shape.vocabulary, shape.width)
            self.layers = nn.ModuleList(Layer() for _ in range(shape.layers))
            self.norm = nn.RMSNorm(shape.width)
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            x = self.tokens(text)
            half = shape.width // shape.heads // 2
            places = torch.arange(shape.length, device=x.device, dtype=torch.float32)
            speeds = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
            angles = torch.outer(places, speeds)
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            for layer in self.layers:
                x = (
                    checkpoint(layer, x, cos, sin, use_reentrant=False)
                    if remat
                    else layer(x, cos, sin)
                )
            return self.head(self.norm(x))

    with torch.device("meta" if device == "meta" else "cpu"):
        model = Llama()
    return model.to_empty(device="pjrt") if device == "meta" else model.to("pjrt")


def mesh_for(way: str, n: int, target: str | None) -> Any:
    from torch_pjrt_spmd import Mesh

    shape, names = (n,), ("fsdp",)
    if way.startswith("hybrid"):
        shape, names = (2, n // 2), ("replica", "fsdp")
    if way.startswith("2-d"):
        shape, names = (n // 4, 4), ("fsdp", "model")
    return Mesh(shape, names) if target is None else Mesh.for_target(target, shape, names)


# How early a block's parameters may be gathered: as `fully_shard` takes it for forward and backward.
GATHERED = {"any time": None, "tied": 0, "one ahead": 1}


def spread(model: Any, way: str, mesh: Any, gathers: str = "tied") -> None:
    """Have the model lie as the way says. `gathers`: a name in `GATHERED`."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from torch_pjrt_fsdp import HostOffload, fully_shard
    from torch_pjrt_spmd import mark_sharding

    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if way.startswith("plain"):
        return
    if way.startswith("2-d"):
        for layer in model.layers:
            for by_column in (layer.q, layer.k, layer.v, layer.gate, layer.up):
                mark_sharding(by_column.weight, mesh, ("model", None))
            for by_row in (layer.o, layer.down):
                mark_sharding(by_row.weight, mesh, (None, "model"))
        mark_sharding(model.tokens.weight, mesh, (None, "model"))
        mark_sharding(model.head.weight, mesh, ("model", None))
        mesh = mesh["fsdp"]
    all_of_it = not way.endswith("state offload")
    offload = HostOffload(all_of_it, all_of_it) if way.endswith("offload") else None
    fully_shard(
        model,
        mesh=mesh,
        wrap="layers.*[0-9]",
        reshard_after_forward=not way.endswith("kept"),
        mp_policy=half,
        offload_policy=offload,
        forward_prefetch=GATHERED[gathers],
        backward_prefetch=GATHERED[gathers],
    )


def measured(
    way: str, target: str | None, shape: Shape, sequences: int, gathers: str
) -> dict[str, Any]:
    """Of the step of a way: bytes of a chip, collectives, and how long it took to compile."""
    import torch
    import torch.nn.functional as F

    import torch_pjrt
    from torch_pjrt.errors import DeviceFull
    from torch_pjrt_spmd import distribute_tensor, program_reports, use_mesh

    torch_pjrt.config.cache_dir = None
    torch_pjrt.config.roll_layers = "on" if "rolled" in way else "off"
    n = 8 if target is None else n_chips(target)
    mesh = mesh_for(way, n, target)
    torch.manual_seed(0)
    model = model_of(shape, "remat" in way, "meta" if target else "cpu")
    spread(model, way, mesh, gathers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    autocast = way.startswith("plain")

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("pjrt", torch.bfloat16, enabled=autocast):
            found = model(x)
        loss = F.cross_entropy(found.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    rows = mesh.size // (4 if way.startswith("2-d") else 1) * sequences
    text = torch.zeros(rows, shape.length, dtype=torch.int64, device="meta" if target else "cpu")
    spec = (("replica", "fsdp"),) if way.startswith("hybrid") else ("fsdp",)
    x, y = (distribute_tensor(text, mesh, spec) for _ in range(2))
    begun = time.perf_counter()
    if target is not None:
        try:
            found = torch_pjrt.compile_for(target, step, x, y)
        except DeviceFull as full:
            return {"full": str(full), "seconds": time.perf_counter() - begun}
        result = {
            "arguments": found.argument_bytes,
            "between": found.temporary_bytes,
            "chip": found.memory_bytes,
            "host": found.host_bytes,
            "collectives": dict(found.collectives),
        }
    else:
        with use_mesh(mesh):
            for _ in range(3):
                step(x, y)
            torch_pjrt.sync()
        last = program_reports()[-1]
        kinds: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for c in last.collectives:
            kinds[c.kind] += c.runs
            sizes[c.kind] += c.runs * c.n_bytes
        arguments = last.parameter_bytes + last.state_bytes + last.other_bytes
        between = last.temporary_bytes or 0
        result = {
            "arguments": arguments,
            "between": between,
            "chip": arguments + between,
            "collectives": {k: (kinds[k], sizes[k]) for k in kinds},
        }
    return {**result, "seconds": time.perf_counter() - begun}


def in_schedule(command: list[str], seconds: float) -> dict[str, Any]:
    """Collectives of a compiled program, from the schedule that libtpu writes before it generates code.

    XLA cannot read all programs back (those with the sparse cores of v5p), so the process that compiles is
    ended as soon as the schedule is there.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = (
            f"--xla_jf_dump_to={folder} --xla_jf_dump_hlo_text=true --xla_jf_dump_llo_text=false"
        )
        flags = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags}"
        process = subprocess.Popen(
            command,
            env={**os.environ, "LIBTPU_INIT_ARGS": flags},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + seconds
            text = ""
            while time.monotonic() < until and process.poll() is None and not _is_all(text):
                time.sleep(2)
                files = sorted(Path(folder).glob("*-TLP-hlo.txt"), key=lambda f: f.stat().st_size)
                text = files[-1].read_text() if files else ""
        finally:
            process.kill()
            process.wait()
    return of_schedule(text) if _is_all(text) else {}


def planned(command: list[str], seconds: float) -> dict[str, Any]:
    """Memory and collectives of a program that libtpu has planned, without the code that it would generate.

    XLA writes how it assigns memory to buffers before that, and the schedule last. A whole compilation counts
    the code apart, and less between; in the one that was compared the sum is the same to 1 MB.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        output = Path(folder) / "output"
        begun = time.monotonic()
        with output.open("w") as said:
            process = subprocess.Popen(
                command, env={**os.environ, "XLA_FLAGS": flags}, stdout=said, stderr=said
            )
            try:
                # Of small programs that this process runs on its CPU there are such files, too.
                while not (
                    done := list(Path(folder).glob("*jit_step*after_buffer_assignment.txt"))
                ):
                    if process.poll() is not None or time.monotonic() - begun > seconds:
                        break
                    time.sleep(1)
                time.sleep(2 * bool(done))  # of a file that is being written
            finally:
                process.kill()
                process.wait()
        if not done:
            lines = [line for line in output.read_text().splitlines() if line.startswith("{")]
            if process.returncode < 0:  # ended above
                return {"full": f"not planned in {seconds:.0f} s"}
            return json.loads(lines[-1]) if lines else {"full": output.read_text().strip()[-300:]}
        [assignment] = Path(folder).glob("*jit_step*after_optimizations-buffer-assignment.txt")
        sizes = assigned(assignment.read_text())
        return {
            "arguments": sizes["parameter"],
            "between": sizes["temp"],
            "chip": sizes["parameter"] + sizes["temp"] + sizes["result"],
            "host": sizes["host"],
            "seconds": time.monotonic() - begun,
            **of_schedule(done[0].read_text()),
        }


def assigned(text: str) -> Counter[str]:
    """In XLA's text of buffers: bytes of the chip's memory for inputs, results, and between; the host's."""
    sizes: Counter[str] = Counter()
    for size, rest in re.findall(r"^allocation \d+: size (\d+)(.*)", text, re.MULTILINE):
        if (
            "color" in rest or "thread-local" in rest
        ):  # another memory than the chip's, or counted twice
            sizes["host"] += int(size) * ("color 5," in rest)
            continue
        kinds = ("parameter", "preallocated-temp", "live-out")
        kind = next((kind for kind in kinds if kind in rest), "other")
        named = {"preallocated-temp": "temp", "live-out": "result"}
        sizes[named.get(kind, kind)] += int(size)
    return sizes


def of_schedule(text: str) -> dict[str, Any]:
    """Collectives of a scheduled program, as they stand in its text: those in a loop once."""
    from torch_pjrt.extend import each_collective

    kinds: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, n_bytes, _ in each_collective(text):
        kinds[kind] += 1
        sizes[kind] += n_bytes
    return {"collectives": {k: (kinds[k], sizes[k]) for k in kinds}, **overlap(text)}


def _is_all(text: str) -> bool:
    """Whether it is the whole text of a program with collectives."""
    return "\nENTRY " in text and text.rstrip().endswith("}")


def overlap(text: str) -> dict[str, int]:
    """In XLA's scheduled text: collectives that run beside other work, and those that it waits for.

    Beside work is what has a start and a done, or is done in steps within fusions (a chain).
    """
    chains = set(re.findall(r"chain_id=\"?(\d+)", text))
    pairs = len(
        re.findall(
            r"(?:all-gather|all-reduce|reduce-scatter|async|collective-permute)-start\(", text
        )
    )
    fused = len(re.findall(r"calls=%async_collective_fusion", text))
    return {"pairs": pairs, "chains": len(chains), "fused": fused}


def n_chips(target: str) -> int:
    n = 1
    for side in target.partition(":")[2].split("x"):
        n *= int(side)
    return n


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("where", choices=("ahead", "here", "one"))
    parser.add_argument("--targets", nargs="+", default=["v5p:2x2x2", "v5p:2x2x4", "v5p:4x4x4"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--layers", nargs="+", type=int)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--length", type=int)
    parser.add_argument("--gathers", choices=tuple(GATHERED), default="tied")
    parser.add_argument("--planned", action="store_true", help="generate no code")
    parser.add_argument("--timeout", type=float, default=900)
    given = parser.parse_args()
    if given.where == "one":
        return one(given)
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    targets = given.targets if given.where == "ahead" else [None]
    layers = given.layers or [SMALL.layers if given.where == "here" else LLAMA_2_7B.layers]
    print(
        "| target | way | layers | inputs, GB | between, GB | of a chip, GB | collectives | beside work |"
    )
    print("| --- | --- | --: | --: | --: | --: | --- | --- |")
    for target in targets:
        for way in given.ways:
            for n in layers:
                print(row(target, way, n, in_a_process(given, target, way, n)), flush=True)


def in_a_process(given: Any, target: str | None, way: str, n: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "one", "--ways", way, "--layers", str(n)]
    command += ["--targets", target] if target else ["--targets", "none"]
    command += ["--sequences", str(given.sequences), "--gathers", given.gathers]
    command += ["--length", str(given.length)] if given.length else []
    if given.planned and target:
        return planned(command, given.timeout)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=given.timeout
        )
    except subprocess.TimeoutExpired:
        return {"full": f"not compiled in {given.timeout:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"full": (done.stderr or "?").strip()[-300:]}
    found = json.loads(lines[-1])
    if target is not None and "full" not in found:
        found |= in_schedule(command, given.timeout)
    return found


def one(given: Any) -> None:
    target = None if given.targets == ["none"] else given.targets[0]
    base = SMALL if target is None else LLAMA_2_7B
    values = {**base.__dict__, "layers": given.layers[0]}
    if given.length:
        values["length"] = given.length
    found = measured(given.ways[0], target, Shape(**values), given.sequences, given.gathers)
    print(json.dumps(found))


def row(target: str | None, way: str, n: int, found: dict[str, Any]) -> str:
    where = target or "8 of the CPU"
    if "full" in found:
        said = " ".join(found["full"].replace("|", "/").split())
        return f"| {where} | {way} | {n} | {said[:160]} | | | | |"
    giga = [found[k] / 1e9 for k in ("arguments", "between", "chip")]
    said = ", ".join(f"{k} {c} ({b / 1e9:.3f} GB)" for k, (c, b) in found["collectives"].items())
    beside = ", ".join(f"{found[k]} {k}" for k in ("pairs", "chains", "fused") if k in found)
    return f"| {where} | {way} | {n} | {giga[0]:.3f} | {giga[1]:.3f} | {giga[2]:.3f} | {said} | {beside} |"


if __name__ == "__main__":
    main()
