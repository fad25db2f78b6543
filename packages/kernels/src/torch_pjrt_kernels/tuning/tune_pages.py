"""Times how many queries and positions of pages are computed at once, on the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from torch_pjrt.plugin import client
from torch_pjrt_kernels.paged import by_steps, ragged_blocks, ragged_tpu
from torch_pjrt_kernels.paged.measured import Serving, entry_of, usual
from torch_pjrt_kernels.table import Blocks
from torch_pjrt_kernels.tuning.timing import least_s

_QUERIES, _POSITIONS = (8, 16, 32, 64, 128), (128, 256, 512, 1024, 2048)
_PAGES_OF_KERNEL = (4, 8, 16, 32, 64)
Found = tuple[str, Blocks, dict[Blocks, float]]


def candidates(call: Serving, what: str) -> list[Blocks]:
    """What a call can have, the usual first: queries of a block, and positions, or pages of the kernel.

    what   "ragged attention", "paged attention" or "ragged kernel".
    """
    first = usual(what, call)
    queries = (first[0],) if what == "paged attention" else _QUERIES
    sizes = _PAGES_OF_KERNEL if what == "ragged kernel" else _POSITIONS
    unit = call.page_size if what == "ragged kernel" else 1
    tried = [
        (q, n) for q in queries if q <= call.tokens for n in sizes if n * unit <= call.positions
    ]
    return list(dict.fromkeys([first, *tried]))


def tuned_pages(
    op: str,
    calls: Sequence[Serving],
    *,
    sizes: Sequence[Blocks] | None = None,
    repetitions: int = 3,
) -> Iterator[Found]:
    """For each call the entry's name, the fastest sizes, and what each took, in seconds.

    op   "ragged": the last tokens are a part of a prompt, the others single ones of the other sequences.
         "paged": each sequence has as many.

    Caches are full. On TPUs it is JAX's kernel that is timed, where that takes the call.
    """
    torch.zeros(1, device="pjrt")  # starts the device
    for each in calls:
        size = each.page_size
        call = each._replace(positions=-(-each.positions // size) * size)  # as the table has them
        arrays = _arrays(call, op)
        q, keys, values, *rest = arrays
        joint: Any = np.stack([keys, values], 3).reshape(*keys.shape[:2], -1, call.width)
        by_kernel = ragged_tpu.objection_to(q, joint, None, None, None, None) is None
        if by_kernel and (op == "ragged" or call.tokens == call.sequences):
            what, arrays = "ragged kernel", [q.reshape(call.tokens, call.heads, -1), joint, *rest]
        else:
            what = f"{op} attention"
        tried = candidates(call, what)
        if sizes is not None:
            tried = list(dict.fromkeys([tried[0], *sizes]))
        steps: dict[str, Callable[[], Any]] = {}
        for blocks in list(tried):
            try:
                steps[f"{blocks[0]} {blocks[1]}"] = _step(what, blocks, arrays)
            except Exception:  # too large for the chip's fast memory, say
                if what != "ragged kernel" or blocks == tried[0]:
                    raise
                tried.remove(blocks)
        took = dict(zip(tried, least_s(steps, repetitions).values(), strict=True))
        yield entry_of(what, call), min(took, key=took.__getitem__), took


def _arrays(call: Serving, op: str) -> list[Any]:
    """Queries, keys and values in pages, the table, lengths and where queries start."""
    numbers, n = np.random.default_rng(0), call.sequences
    most = call.positions // call.page_size
    pages = (n * most, call.page_size, call.key_heads, call.width)
    each = call.tokens // n
    starts = np.minimum(np.arange(n + 1), call.tokens).astype(np.int32)
    starts[-1] = call.tokens
    rows = (call.tokens,) if op == "ragged" else (n, each)
    drawn = [
        numbers.standard_normal(shape, np.float32).astype(jax.numpy.dtype(call.dtype))
        for shape in ((*rows, call.heads, call.width), pages, pages)
    ]
    table = numbers.permutation(n * most).astype(np.int32).reshape(n, most)
    lengths = np.full(n, call.positions, np.int32)
    return [*drawn, table, lengths, starts]


def _step(what: str, blocks: Blocks, arrays: list[Any]) -> Callable[[], Any]:
    form: dict[str, Any] = {"window": None, "soft_cap": None, "scale": None}
    given = [jax.device_put(x, client().chip) for x in arrays]
    if what == "ragged kernel":
        q, pages, table, lengths, starts = given
        given = [q, pages, table, lengths, starts]
        run: Any = partial(ragged_tpu.ragged_paged_attention, blocks=blocks, **form)
    elif what == "ragged attention":
        in_blocks = partial(ragged_blocks.ragged_paged_attention, blocks=blocks, **form)
        run = lambda *given: in_blocks(*given, None, None, None)  # noqa: E731
    else:
        given = given[:5]
        steps = partial(by_steps.paged_attention, positions=blocks[1], **form)
        run = lambda *given: steps(*given, None, None, None)  # noqa: E731
    program = jax.jit(run).lower(*given).compile()
    return lambda: jax.block_until_ready(program(*given))
