"""Times the package's functions against what PyTorch composes on the device, on the CPU, and tokamax."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torch_pjrt_kernels import (
    flash_attention,
    linear_cross_entropy,
    paged_attention,
    ragged_paged_attention,
    rotary,
)
from torch_pjrt_kernels.attention import reference as attention
from torch_pjrt_kernels.paged import ragged_reference
from torch_pjrt_kernels.paged import reference as paged
from torch_pjrt_kernels.tuning import by_tokamax
from torch_pjrt_kernels.tuning.timing import least_s

Tensor = torch.Tensor


class Case(NamedTuple):
    """What is timed: `kernel` and `plain`, which compute the same, of arguments, forward and backward.

    n_leaves   how many of the arguments get gradients: the first ones; 0: forward alone.
    on_cpu     PyTorch's own for the CPU, if that is not `plain`.
    """

    kernel: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    arguments: list[Tensor]
    n_leaves: int
    on_cpu: Callable[..., Tensor] | None = None


def _plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention.attention(q, k, v, is_causal=True)[0]


def _plain_loss(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w), target)


def _on_cpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All to all. PyTorch warns of what it does on other devices, where it is not compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flex_attention(q, k, v)  # type: ignore[return-value]


def _varlen(length: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Four sequences in a row of `length` positions, (T, H, W): `varlen_attn`, and one by one."""
    from torch.nn.attention.varlen import varlen_attn

    ends = [0, length // 8, length // 4, length // 2, length]
    starts = torch.tensor(ends, dtype=torch.int32, device="pjrt")

    def in_a_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = varlen_attn(q, k, v, starts, starts, length, length, window_size=(-1, 0))
        return found[0] if isinstance(found, tuple) else found

    def one_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = [
            _on_cpu(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)
            for a, b in pairwise(ends)
        ]
        return torch.cat(parts)

    return in_a_row, one_by_one


def _plain_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def cases(length: int) -> dict[str, Case]:
    """Of one length: positions, tokens, rows, or keys of a cache."""
    torch.manual_seed(0)
    heads = [torch.randn(1, 4, length, 64) for _ in range(3)]
    pages = [torch.randn(4 * (length // 16), 16, 4, 64) for _ in range(2)]
    table = torch.arange(4 * (length // 16)).reshape(4, -1).int()
    in_a_row, one_by_one = _varlen(length)
    starts = torch.tensor([0, 1, 2, 3, 64])  # three single tokens, and a part of a prompt
    return {
        "flash_attention": Case(
            lambda q, k, v: flash_attention(q, k, v, is_causal=True), _plain_attention, heads, 3,
            _on_cpu,
        ),
        "flex_attention": Case(
            _flex, lambda *qkv: attention.attention(*qkv)[0], heads, 3, F.scaled_dot_product_attention
        ),
        "varlen_attn": Case(
            in_a_row, one_by_one, [x[0].transpose(0, 1).contiguous() for x in heads], 3
        ),
        "linear_cross_entropy": Case(
            linear_cross_entropy, _plain_loss,
            [torch.randn(length, 128), torch.randn(8192, 128), torch.randint(8192, (length,))], 2,
        ),
        "rotary": Case(rotary, _plain_rotary, [heads[0], *torch.randn(2, length, 64)], 1),
        "paged_attention": Case(
            paged_attention, paged.paged_attention,
            [torch.randn(4, 1, 8, 64), *pages, table, torch.full((4,), length)], 0,
        ),
        "ragged_paged_attention": Case(
            ragged_paged_attention, ragged_reference.ragged_paged_attention,
            [torch.randn(64, 8, 64), *pages, table, torch.full((4,), length), starts], 0,
        ),
    }  # fmt: skip


def timed(
    lengths: list[int], only: list[str] | None = None, repetitions: int = 5
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """The function, the length, and the seconds of "kernel", "plain" (on the device), "CPU" (PyTorch's).

    Where tokamax is installed, also "tokamax" (on the device), for functions that it has.
    """
    for length in lengths:
        for name, case in cases(length).items():
            if only and name not in only:
                continue
            there = [x.to("pjrt") for x in case.arguments]
            steps = {
                "kernel": _step(case.kernel, there, case.n_leaves),
                "plain": _step(case.plain, there, case.n_leaves),
                "CPU": _step(case.on_cpu or case.plain, case.arguments, case.n_leaves),
            }
            if by_tokamax.is_installed():
                theirs = by_tokamax.step(name, case.arguments, case.n_leaves)
                steps |= {"tokamax": theirs} if theirs else {}
            yield name, length, least_s(steps, repetitions)


def _step(function: Callable[..., Tensor], given: list[Tensor], n_leaves: int) -> Callable[[], Any]:
    def run() -> Any:
        leaves = [x.detach().requires_grad_() for x in given[:n_leaves]]
        y = function(*leaves, *given[n_leaves:])
        return y, torch.autograd.grad(y.sum(), leaves) if leaves else ()

    return run
