"""Text from a Llama-shaped model: lazy, compiled, captured, JAX by hand, eager CPU, Inductor.

    pip install transformers
    python benchmarks/generation [--layers 8] [--tokens 64] [--ways jax captured]

Hugging Face's own class with random weights and its static cache, and the same model written by hand in
JAX (`text_jax.py`). A prompt is padded on the left to a bucket; prefill and decode are two functions.
Tokens stay on the device: the first one is read, the others when all are there. Each contestant is a
process of its own, with nothing on disk; rounds follow in turns. All must generate the tokens of the first.

first token, s   from a prompt to its first token, in a process that has generated nothing: prefill compiled
second, s        from there to the next one: decode compiled
first token, ms  later
host, ms         the calling thread is busy with a token after the first (empty where it computes as well)
token, ms        one token after the first, all together waited for
programs         launched for such a token
tokens/s         with the first tokens
compiled         programs that were compiled in rounds: none, if buckets do what they are for
same             tokens that are those of the first contestant
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from text_sizes import Sizes
from text_ways import WAYS

HERE = Path(__file__).parent


class Stopped(RuntimeError):
    """A contestant's process ended by itself."""


class Contestant:
    """A running process."""

    def __init__(self, way: str, sizes: Sizes, n_tokens: int) -> None:
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the contestant
        command = [sys.executable, str(HERE / "text_contestant.py")]
        self.process = subprocess.Popen(
            [*command, way, json.dumps(asdict(sizes)), str(n_tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env={**os.environ, **WAYS[way].settings},
        )

    def ask(self, question: str) -> dict[str, Any]:
        """What it answers to a line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        status = self.process.wait()
        self.complaints.seek(0)
        lines = self.complaints.read().strip().splitlines()
        named = [line for line in lines if "Error" in line.partition(":")[0]]
        raise Stopped(f"stopped with status {status}: {(named or lines or [''])[-1]}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.complaints.close()


@dataclass
class Result:
    """What a way answered: to `begin`, to `agree` and to each `round`."""

    way: str
    begun: dict[str, float]
    tokens: list[list[int]]
    rounds: list[dict[str, float]] = field(default_factory=list)

    def median(self, what: str) -> float:
        return statistics.median(answer[what] for answer in self.rounds)


def race(
    ways: Sequence[str], sizes: Sizes, n_tokens: int, rounds: int
) -> tuple[list[Result], dict[str, str]]:
    """Measure each way; those that stopped before the rounds, and why."""
    running: list[tuple[Result, Contestant]] = []
    stopped = {}
    try:
        for way in ways:
            print(f"{WAYS[way].title} ...", file=sys.stderr, flush=True)
            contestant = Contestant(way, sizes, n_tokens)
            try:
                begun, tokens = contestant.ask("begin"), contestant.ask("agree")["tokens"]
            except Stopped as error:
                contestant.stop()
                stopped[way] = str(error)
            else:
                running.append((Result(way, begun, tokens), contestant))
        for _ in range(rounds):
            for result, contestant in running:
                result.rounds.append(contestant.ask("round"))
    finally:
        for _, contestant in running:
            contestant.stop()
    return [result for result, _ in running], stopped


def share_of_same(result: Result, base: Result) -> float:
    """How many tokens are those of `base`, of 1."""
    pairs = zip(chain(*result.tokens), chain(*base.tokens), strict=True)
    same = [mine == its for mine, its in pairs]
    return sum(same) / len(same)


def row(result: Result, base: Result) -> list[str]:
    """The cells of a contestant."""
    way = WAYS[result.way]
    counted = result.median("programs") > 0
    return [
        way.title,
        f"{result.begun['prefill_s']:.2f}",
        f"{result.begun['decode_s']:.2f}",
        f"{result.median('first_ms'):.1f}",
        f"{result.median('host_ms'):.2f}" if way.launches else "",
        f"{result.median('token_ms'):.2f}",
        f"{result.median('programs'):g}" if counted else "",
        f"{result.median('per_second'):.0f}",
        f"{sum(answer['compiled'] for answer in result.rounds):g}" if counted else "",
        f"{share_of_same(result, base):.0%}",
    ]


HEADINGS = (
    "",
    "first token, s",
    "second, s",
    "first token, ms",
    "host, ms",
    "token, ms",
    "programs",
    "tokens/s",
    "compiled",
    "same",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Text from a Llama-shaped model, in several ways.")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="tokens after each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.tokens < 2:
        parser.error("--tokens must be 2 or more: a token after the first is measured")

    sizes = Sizes(layers=arguments.layers)
    results, stopped = race(arguments.ways, sizes, arguments.tokens, arguments.rounds)
    title = f"{sizes.layers} layers, {arguments.tokens} tokens; {os.cpu_count()} cores"
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for result in results:
        table.add_row(*row(result, results[0]))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    for way, why in stopped.items():
        console.print(f"{WAYS[way].title}: {why}", markup=False)
    if wrong := [WAYS[r.way].title for r in results if share_of_same(r, results[0]) < 1]:
        sys.exit(
            f"Others' tokens are not those of {WAYS[results[0].way].title}: {'; '.join(wrong)}."
        )


if __name__ == "__main__":
    main()
