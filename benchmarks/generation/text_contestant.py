"""One contestant, in a process of its own: it answers each line of its input by a line of JSON.

begin    the first two tokens, each waited for: the seconds they took, compiling and all
agree    generate for each prompt, until nothing is new: the tokens
round    generate for each prompt, timed
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from text_sizes import Sizes, prompts_of, room_for
from text_ways import WAYS, Generator


@dataclass
class Generation:
    """Tokens after a prompt, and what they took.

    first_s   from the prompt on the host to its first token there.
    rest_s    the other tokens, read together; `host_s` of it the calling thread was busy.
    programs  how many ran for the other tokens.
    """

    tokens: list[int]
    first_s: float
    rest_s: float
    host_s: float
    programs: int


def generate(way: Generator, prompt: torch.Tensor, n_tokens: int) -> Generation:
    start = time.perf_counter()
    tokens = [way.first(prompt)]
    way.read(tokens)
    first_s = time.perf_counter() - start
    launched, busy, start = way.programs_run(), time.thread_time(), time.perf_counter()
    for _ in range(n_tokens - 1):
        tokens.append(way.next())
    host_s, launched = time.thread_time() - busy, way.programs_run() - launched
    values = way.read(tokens)
    return Generation(values, first_s, time.perf_counter() - start, host_s, launched)


def begun(way: Generator, prompt: torch.Tensor) -> dict[str, Any]:
    start = time.perf_counter()
    way.read([way.first(prompt)])
    first = time.perf_counter()
    way.read([way.next()])
    return {"prefill_s": first - start, "decode_s": time.perf_counter() - first}


def agreed(way: Generator, prompts: list[torch.Tensor], n_tokens: int) -> dict[str, Any]:
    results = [generate(way, prompt, n_tokens).tokens for prompt in prompts]
    for prompt in prompts:  # numbers that change have become inputs, steps were observed
        generate(way, prompt, n_tokens)
    return {"tokens": results}


def timed(way: Generator, prompts: list[torch.Tensor], n_tokens: int) -> dict[str, Any]:
    compiled = way.programs_compiled()
    runs = [generate(way, prompt, n_tokens) for prompt in prompts]
    n_rest = (n_tokens - 1) * len(runs)
    return {
        "first_ms": statistics.median(run.first_s for run in runs) * 1e3,
        "host_ms": sum(run.host_s for run in runs) / n_rest * 1e3,
        "token_ms": sum(run.rest_s for run in runs) / n_rest * 1e3,
        "programs": sum(run.programs for run in runs) / n_rest,
        "per_second": n_tokens * len(runs) / sum(run.first_s + run.rest_s for run in runs),
        "compiled": way.programs_compiled() - compiled,
    }


def serve(way_name: str, sizes: Sizes, n_tokens: int) -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    way, prompts = WAYS[way_name].make(sizes, room_for(n_tokens)), prompts_of(sizes)
    answers = {
        "begin": lambda: begun(way, prompts[0]),
        "agree": lambda: agreed(way, prompts, n_tokens),
        "round": lambda: timed(way, prompts, n_tokens),
    }
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Sizes(**json.loads(sys.argv[2])), int(sys.argv[3]))
