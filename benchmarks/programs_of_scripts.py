"""How many programs ordinary scripts have, in a first process and in a second one.

    python benchmarks/programs_of_scripts.py [NAMES...]

Each script is run twice, with a folder of programs of its own: two of the usual kind, our demos, and those of
Transformers and Lightning, where these are installed. `large` counts programs of a tenth of the largest one's
operators or more. Syncs and reads are per launch of the program that ran most.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"

#  name                   script, its arguments                                         module that it needs
SCRIPTS = {
    "image classification": ([HERE / "scripts" / "image_classification.py"], "torch"),
    "word language model": ([HERE / "scripts" / "word_language_model.py"], "torch"),
    "digits": ([EXAMPLES / "train_digits.py", "--epochs", "3"], "sklearn"),
    "GPT": ([EXAMPLES / "train_gpt.py", "--steps", "60"], "torch"),
    "Trainer": ([EXAMPLES / "finetune_trainer.py", "--steps", "60"], "transformers"),
    "Lightning": ([EXAMPLES / "pretrain_lightning.py", "--epochs", "2"], "lightning"),
}
_MARK = "PROGRAMS OF THE SCRIPT "


def run(script: str, arguments: list[str]) -> None:
    """Run a script as `__main__`, and print what it compiled last."""
    from torch_pjrt.extend import Program, add_program_hooks

    made: list[Program] = []
    with add_program_hooks(after_compile=made.append):
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
    import torch_pjrt

    found = torch_pjrt.report().as_dict()
    programs = [
        [len(p.recorded.nodes), p.compilation.runs, p.compilation.cause.split(" at ")[0]]
        for p in made
    ]
    print(_MARK + json.dumps({"programs": programs, "counters": found}))


def measured(command: list[str], folder: str) -> dict[str, Any]:
    """What a process that runs the script says."""
    env = {**os.environ, "TORCH_PJRT_CACHE_DIR": folder, "PJRT_DEVICE": "CPU", "USE_TORCH_XLA": "0"}
    done = subprocess.run(
        [sys.executable, __file__, "--run", *command],
        env=env,
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not lines:
        raise SystemExit(f"{command} failed:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1].removeprefix(_MARK))


def row(name: str, first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The cells of a script."""
    programs = first["programs"]
    largest = max(n for n, _, _ in programs)
    large = [n for n, _, _ in programs if 10 * n >= largest]
    seconds = sum(first["counters"][k] for k in ("lower_s", "compile_s"))
    most = max(runs for _, runs, _ in programs)
    return [
        name,
        str(len(large)),
        ", ".join(map(str, sorted(large, reverse=True))),
        str(len(programs) - len(large)),
        f"{seconds:.1f}",
        str(second["counters"]["programs_compiled"]),
        f"{second['counters']['load_s']:.1f}",
        str(most),
        f"{sum(first['counters']['syncs'].values()) / most:.2f}",
        f"{first['counters']['downloads'] / most:.2f}",
        str(sum(first["counters"]["fallbacks"].values())),
    ]


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*SCRIPTS, []], help="all by default")
    names = parser.parse_args().names or list(SCRIPTS)
    titles = "script|large|their operators|small|compiled in, s|compiled by a second process|loaded in, s"
    table = Table(*titles.split("|"), "most launches of one", "syncs", "reads", "fallbacks")
    for name in names:
        command, needed = SCRIPTS[name]
        if importlib.util.find_spec(needed) is None:
            print(f"{name} needs {needed}, which is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            first, second = (measured([str(part) for part in command], folder) for _ in range(2))
        table.add_row(*row(name, first, second))
        print(name, row(name, first, second), flush=True)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
