"""Times the package's functions against what PyTorch composes on the device, on the CPU, and tokamax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torch_pjrt_kernels import (
    flash_attention,
    linear_cross_entropy,
    paged_attention,
    rotary,
)
from torch_pjrt_kernels.attention import reference as attention
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


def _plain_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def cases(length: int) -> dict[str, Case]:
    """Of one length: positions, tokens, rows, or keys of a cache."""
    torch.manual_seed(0)
    heads = [torch.randn(1, 4, length, 64) for _ in range(3)]
    pages = [torch.randn(4 * (length // 16), 16, 4, 64) for _ in range(2)]
    table = torch.arange(4 * (length // 16)).reshape(4, -1).int()
    return {
        "flash_attention": Case(
            lambda q, k, v: flash_attention(q, k, v, is_causal=True), _plain_attention, heads, 3,
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
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
