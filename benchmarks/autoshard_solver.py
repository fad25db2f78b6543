"""The solver of auto-sharding on the problems of ASPLOS 2025's contest, and on problems of known least cost.

    python benchmarks/autoshard_solver.py FOLDER --write

FOLDER has `asplos-2025-iopddl-A.json.gz` and its like (github.com/google/iopddl); they are not part of this
project, and are left out, with a word, if they are not there. Each problem is a process of its own with its
time limit on the wall clock; costs over time are what the process told. Costs are checked here again.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from torch_pjrt_spmd.autoshard.solver import read
from torch_pjrt_spmd.autoshard.solver.contraction import Contraction
from torch_pjrt_spmd.autoshard.solver.core import core_of
from torch_pjrt_spmd.autoshard.solver.known import planted
from torch_pjrt_spmd.autoshard.solver.reading import to_json

RESULTS = Path(__file__).parent / "results" / "autoshard-solver.md"
# problem, what it is, seconds, and the published costs of the contest's first three teams, on eight cores
CONTEST = [
    ("A", "GNS 4x8", 60, (6_569_457_676, 6_548_641_531, 6_569_487_080)),
    ("G", "transformer inference 2x16", 120, (217_039, 217_039, 362_368)),
    ("M", "Gemma1-2B 8x8", 180, (49_928_460_991, 66_904_362_403, 115_475_720_806)),
    ("S", "U-Net 2x16", 240, (1_534_613_444, 1_956_391_668, 2_464_224_563)),
]
# nodes, seed, how planted
PLANTED: list[tuple[int, int, dict[str, Any]]] = [
    (100, 1, {}),
    (1_000, 2, {}),
    (10_000, 3, {}),
    (50_000, 4, {}),
    (1_000, 5, {"binding": 300}),
    (10_000, 6, {"binding": 3_000, "kinds": 3_000}),
    (10_000, 7, {"binding": 3_000, "follow": 0.1, "strategies": 12}),
    (30_000, 8, {"binding": 12_000, "follow": 0.8, "strategies": 12}),
    (65_000, 9, {"binding": 5_000, "follow": 0.7, "strategies": 16, "kinds": 20_000}),
]
PLANTED_S = 60


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the contest's problems are")
    parser.add_argument("--only", default="AGMS", help="letters of problems")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    lines = ["# The solver of auto-sharding", "", *about(), "", *contest_head()]
    for letter, what, seconds, published in CONTEST:
        path = options.folder / f"asplos-2025-iopddl-{letter}.json.gz"
        if letter not in options.only:
            continue
        if not path.exists():
            print(f"{path} is not there: left out", file=sys.stderr)
            continue
        lines.append(contest_row(letter, what, seconds, published, path))
        print(lines[-1], flush=True)
    lines += ["", *planted_head()]
    for nodes, seed, how in PLANTED:
        lines.append(planted_row(nodes, seed, how))
        print(lines[-1], flush=True)
    if options.write:
        RESULTS.write_text("\n".join(lines) + "\n")


def about() -> list[str]:
    load = os.getloadavg()[0]
    return [
        f"`benchmarks/autoshard_solver.py`, {os.cpu_count()} cores, load {load:.1f} at the start.",
        "Costs are those of the best choice after 10 s, after 60 s and at the end of the time limit, on",
        "the wall clock, with the start of Python, reading and compiling in it. *Bound*: what the solver",
        "proved, no choice costs less. The published costs are those of the contest, on eight cores.",
        "*Score*: the least cost of the row over ours.",
    ]


def contest_head() -> list[str]:
    columns = (
        "problem",
        "limit, s",
        "10 s",
        "60 s",
        "end",
        "bound",
        "took, s",
        "MiB",
        "first",
        "second",
        "third",
        "score",
    )
    return ["| " + " | ".join(columns) + " |", "|---|" + "--:|" * (len(columns) - 1)]


def contest_row(
    letter: str, what: str, seconds: int, published: tuple[int, ...], path: Path
) -> str:
    code, out, err, took, mib = run(path, seconds)
    if code:
        return f"| {letter}, {what} | {seconds} | failed: {err.splitlines()[-1]} |"
    problem, choice = read(path), ast.literal_eval(out.splitlines()[-1])
    cost = problem.cost(choice)
    assert problem.usage_limit is None or problem.peak(choice) <= problem.usage_limit
    told = [line.split() for line in err.splitlines() if " s  cost " in line]
    bounds = [int(words[-1]) for words in told if words[-1] != "None"]
    cells = [f"{letter}, {what}", seconds, cost_at(told, 10), cost_at(told, 60), f"{cost:,}"]
    cells += [f"{max(bounds):,}" if bounds else "none", f"{took:.1f}", f"{mib:,.0f}"]
    cells += [f"{other:,}" for other in published]
    cells.append(f"{min(cost, *published) / cost:.4f}")
    return "| " + " | ".join(map(str, cells)) + " |"


def run(path: Path, seconds: float) -> tuple[int, str, str, float, float]:
    """The command on a file: exit code, stdout, stderr, seconds, MiB at its fullest."""
    command = [sys.executable, "-m", "torch_pjrt_spmd.autoshard", "solve", str(path), "--progress"]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([*command, "--seconds", str(seconds)], stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        took = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return code, out.read(), err.read(), took, usage.ru_maxrss / 1024


def cost_at(told: list[list[str]], seconds: float) -> str:
    costs = [words[3] for words in told if float(words[0]) <= seconds and words[3] != "None"]
    return f"{int(costs[-1]):,}" if costs else "none yet"


def planted_head() -> list[str]:
    return [
        f"Problems that `solver/known.py` makes around a choice that is the best, {PLANTED_S} s at most,",
        "from files, by the command. *Binds*: the checkpoints of memory that are left to look at.",
        "",
        "| nodes | how | entries | tables | binds | least cost | ours | above it | bound | took, s | MiB |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]


def planted_row(nodes: int, seed: int, how: dict[str, Any]) -> str:
    problem, least = planted(nodes, seed, **how)
    entries = sum(problem.tables[k].size for k in problem.edge_tables)
    binds = len(core_of(problem, Contraction(problem)).limits)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(to_json(problem), file)
        file.flush()
        code, out, err, took, mib = run(Path(file.name), PLANTED_S)
    if code:
        return f"| {nodes:,} | {how} | failed: {err.splitlines()[-1]} |"
    choice = np.array(ast.literal_eval(out.splitlines()[-1]))
    cost, limit = problem.cost(choice), problem.usage_limit
    assert problem.is_allowed(choice) and (limit is None or problem.peak(choice) <= limit)
    told = [line.split() for line in err.splitlines() if " s  cost " in line]
    bounds = [int(words[-1]) for words in told if words[-1] != "None"]
    bound = f"{max(bounds):,}" if bounds else "none"
    options = ", ".join(f"{name} {value:,}" for name, value in how.items())
    return (
        f"| {nodes:,} | {options} | {entries:,} | {len(problem.tables):,} | {binds:,} | {least:,} | "
        f"{cost:,} | {(cost - least) / least:.3%} | {bound} | {took:.1f} | {mib:,.0f} |"
    )


if __name__ == "__main__":
    main()
