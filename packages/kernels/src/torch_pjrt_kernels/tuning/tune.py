"""Times sizes of blocks on the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torch_pjrt.plugin import client
from torch_pjrt_kernels.attention import tpu
from torch_pjrt_kernels.attention.choice import Problem, objection_to_blocks, sizes_of
from torch_pjrt_kernels.attention.form import Form, Sizes
from torch_pjrt_kernels.attention.groups import backward, forward
from torch_pjrt_kernels.table import Blocks, entry_of
from torch_pjrt_kernels.tuning.timing import least_s

_QUERIES, _KEYS = (64, 128, 256, 512, 1024), (128, 256, 512, 1024)
# Of the scores of one block, in float32: larger ones only take memory.
_MOST_BYTES = 64 * 2**20


def candidates(problem: Problem) -> list[Blocks]:
    """Sizes of blocks that a problem can have."""
    pairs = problem.batch * problem.heads
    return [
        (queries, keys)
        for queries in _QUERIES
        for keys in _KEYS
        if queries <= problem.queries
        and keys <= problem.keys
        and 4 * pairs * queries * keys <= _MOST_BYTES
    ]


def tuned(
    problems: Sequence[Problem],
    *,
    sizes: Sequence[Blocks] | None = None,
    repetitions: int = 3,
) -> Iterator[tuple[str, Blocks, dict[Blocks, float]]]:
    """For each problem the entry's name, the fastest sizes, and what each took, in seconds.

    Forward and backward, in the dtype of the problem. Those that are not computed in blocks are left out.
    """
    torch.zeros(1, device="pjrt")  # starts the device
    on_cpu = client().device.name == "CPU"
    for problem in problems:
        if objection_to_blocks(problem) is not None:
            continue
        usual = sizes_of(problem, on_cpu=on_cpu, measured=False)
        tried = dict.fromkeys([(usual.block_queries, usual.block_keys)])
        tried |= dict.fromkeys(candidates(problem) if sizes is None else sizes)
        steps = {f"{q} {k}": _step(problem, (q, k)) for q, k in tried}
        took = dict(zip(tried, least_s(steps, repetitions).values(), strict=True))
        yield entry_of(problem), min(took, key=took.__getitem__), took


def tuned_on_tpu(
    problems: Sequence[Problem],
    *,
    sizes: Sequence[Blocks] | None = None,
    repetitions: int = 3,
) -> Iterator[tuple[str, Blocks, dict[Blocks, float]]]:
    """As `tuned`, of JAX's splash kernel; what it does not take, or compile, is left out."""
    torch.zeros(1, device="pjrt")  # starts the device
    for problem in problems:
        against = tpu.objection_of_the_chip() or tpu.objection(
            problem, problem.dtype, has_bias=False, dropout_p=0.0
        )
        if against is not None:
            continue
        n, m = problem.queries, problem.keys
        usual = tpu.usual_blocks(n, m)
        tried = dict.fromkeys([usual, *(tpu.candidates(n, m) if sizes is None else sizes)])
        steps: dict[str, Callable[[], Any]] = {}
        for blocks in list(tried):
            try:
                steps[f"{blocks[0]} {blocks[1]}"] = _step_on_tpu(problem, blocks)
            except Exception:  # too large for the chip's fast memory, say
                if blocks == usual:
                    raise
                del tried[blocks]
        took = dict(zip(tried, least_s(steps, repetitions).values(), strict=True))
        entry = tpu.entry_of(n, m, problem.width, is_causal=problem.is_causal)
        yield entry, min(took, key=took.__getitem__), took


def _step_on_tpu(problem: Problem, blocks: Blocks) -> Callable[[], Any]:
    pattern = tpu.Pattern(behind=0 if problem.is_causal else None)
    form: Any = (problem.width**-0.5, pattern, None, blocks)

    def both(q: Any, k: Any, v: Any, grad: Any) -> Any:
        return tpu.forward(q, k, v, *form)[0], tpu.backward(grad, q, k, v, *form)

    return _compiled(both, problem)


def _step(problem: Problem, blocks: Blocks) -> Callable[[], Any]:
    sizes = Sizes(
        problem.batch, problem.key_heads, problem.heads // problem.key_heads, problem.queries,
        problem.keys, *blocks,
    )  # fmt: skip
    form = Form(problem.width**-0.5, is_causal=problem.is_causal)

    def both(q: Any, k: Any, v: Any, grad: Any) -> Any:
        out, logsumexp = forward(q, k, v, form, sizes)
        return out, backward(grad, q, k, v, out, logsumexp, form, sizes)[:3]

    return _compiled(both, problem)


def _compiled(both: Callable[..., Any], problem: Problem) -> Callable[[], Any]:
    numbers, of = np.random.default_rng(0), problem
    shapes = (
        (of.batch, of.heads, of.queries, of.width),
        (of.batch, of.key_heads, of.keys, of.width),
        (of.batch, of.key_heads, of.keys, of.value_width),
        (of.batch, of.heads, of.queries, of.value_width),
    )
    chip = client().chip
    arrays = [
        jax.device_put(numbers.standard_normal(s, "float32"), chip).astype(of.dtype) for s in shapes
    ]
    program = jax.jit(both).lower(*arrays).compile()
    return lambda: jax.block_until_ready(program(*arrays))
