"""Operators on lists whose elements are plain, views, aliases of one another, empty: each as on the CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt.graph.tape import state

N_CALLS = 12
SHAPE = (2, 3, 1, 2)


def pool(device: str) -> list[torch.Tensor]:
    """Tensors of one shape that lie in memory in all ways that matter here; some share it."""

    def plain(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(shape, generator=generator).to(dtype).to(device)

    shared = plain(1, *SHAPE)
    base = plain(2, 3, *SHAPE)
    complex_ = torch.complex(plain(3, *SHAPE), plain(4, *SHAPE))
    return [
        *[plain(10 + i, *SHAPE) for i in range(8)],
        shared,
        shared.detach(),
        base[0],
        base[1],
        base[1].detach(),
        plain(5, *SHAPE[::-1]).permute(3, 2, 1, 0),
        plain(6, *SHAPE).contiguous(memory_format=torch.channels_last),
        torch._neg_view(plain(7, *SHAPE)),
        complex_.conj().imag,
        plain(8, 1, 1, 1, 2).expand(SHAPE),
        torch.empty(SHAPE, device=device).fill_(0.5),
        torch.empty(SHAPE, device=device).zero_().view(SHAPE),
        plain(9, *SHAPE, dtype=torch.bfloat16),
        plain(9, *SHAPE, dtype=torch.float64),
        plain(20, 7, 2, 3, 1, 2)[::3][1],
        torch.nn.Parameter(plain(21, *SHAPE)),
    ]


Lists = Callable[[], list[torch.Tensor]]
CALLS: dict[str, Callable[[Lists, list[torch.Tensor], list[float]], Any]] = {
    "add_ number": lambda read, x, n: torch._foreach_add_(x, 0.5),
    "add_ numbers": lambda read, x, n: torch._foreach_add_(x, n),
    "add_ whole numbers": lambda read, x, n: torch._foreach_add_(x, [2] * len(x)),
    "add_ mixed numbers": lambda read, x, n: torch._foreach_add_(x, [2, *n[1:]]),
    "add_ list": lambda read, x, n: torch._foreach_add_(x, read(), alpha=2.0),
    "mul_ list": lambda read, x, n: torch._foreach_mul_(x, read()),
    "lerp_": lambda read, x, n: torch._foreach_lerp_(x, read(), 0.25),
    "addcmul_": lambda read, x, n: torch._foreach_addcmul_(x, read(), read(), 0.5),
    "addcdiv_ numbers": lambda read, x, n: torch._foreach_addcmul_(x, read(), read(), n),
    "copy_": lambda read, x, n: torch._foreach_copy_(x, read()),
    "zero_": lambda read, x, n: torch._foreach_zero_(x),
    "sqrt": lambda read, x, n: torch._foreach_sqrt(torch._foreach_abs(x)),
    "neg_": lambda read, x, n: torch._foreach_neg_(x),
    "own square": lambda read, x, n: torch._foreach_mul_(x, list(x)),
}


def calls(device: str, seed: int) -> list[Any]:
    """What a few random calls return, then all tensors.

    Or an error, which ends it: the CPU has changed the elements before the one that it refuses, we none.
    """
    rng = random.Random(seed)
    tensors = pool(device)
    plain = tensors[:8]
    seen: list[Any] = []
    with torch.no_grad():
        for _ in range(N_CALLS):
            name = rng.choice([*CALLS])
            among = plain if rng.random() < 0.3 else tensors
            n = rng.randint(1, 6)
            written = rng.choices(among, k=n) if rng.random() < 0.2 else rng.sample(among, n)
            numbers = [rng.uniform(-1, 1) for _ in range(n)]
            read = lambda among=among, n=n: rng.choices(among, k=n)  # noqa: E731
            try:
                returned = CALLS[name](read, written, numbers) or ()
                seen.append([x.clone() for x in returned])
            except RuntimeError as error:
                return [seen, f"{name}: {type(error).__name__}"]
    return [seen, tensors]


@pytest.mark.parametrize("part", range(4))
def test_random_calls_do_what_they_do_on_the_cpu(part: int) -> None:
    recorded = counters.operators
    for seed in range(8 * part, 8 * part + 8):
        expected, actual = calls("cpu", seed), calls("pjrt", seed)

        torch.testing.assert_close(
            _floats(actual), _floats(expected), msg=lambda m, seed=seed: f"seed {seed}: {m}"
        )
    assert counters.operators > recorded


def _floats(seen: Any) -> Any:
    """All tensors on the CPU, in a list; errors by their names."""
    if isinstance(seen, torch.Tensor):
        return seen.detach().cpu().resolve_neg().resolve_conj()
    if isinstance(seen, (list, tuple)):
        return [_floats(x) for x in seen]
    return sum(map(ord, f"{seen}"))  # `assert_close` compares numbers


def test_a_resized_or_replaced_element_is_seen() -> None:
    found = {}
    for device in ("cpu", "pjrt"):
        xs = [torch.ones(3, device=device) for _ in range(3)]
        torch._foreach_add_(xs, 1.0)
        xs[0].data = torch.zeros(2, device=device)
        xs[1].set_(torch.arange(4.0, device=device)[1:])  # type: ignore[call-overload]
        xs[2].resize_(1)
        torch._foreach_add_(xs, 1.0)
        found[device] = [x.tolist() for x in xs]

    assert found["pjrt"] == found["cpu"] == [[1.0, 1.0], [2.0, 3.0, 4.0], [3.0]]


def test_other_lengths_and_orders_are_other_calls() -> None:
    xs = [torch.full((2,), float(i), device="pjrt") for i in range(4)]
    ys = [torch.full((2,), 10.0 * i, device="pjrt") for i in range(4)]

    torch._foreach_add_(xs[:2], ys[2:])
    torch._foreach_add_(xs, ys)
    torch._foreach_addcmul_(xs[1:], ys[1:], ys[:3], [1.0, 2.0, 3.0])

    assert [x[0].item() for x in xs] == [20.0, 41.0, 22.0 + 400.0, 33.0 + 1800.0]


def test_a_view_in_a_list_is_read_once() -> None:
    """A list with views in it is a list as others are: nothing is looked at twice, or recorded in vain."""
    xs = [torch.ones(2, 3, device="pjrt") for _ in range(4)]
    gradients = [torch.ones(3, 2, device="pjrt").t() for _ in range(4)]
    torch_pjrt.sync()

    torch._foreach_add_(xs, gradients)

    reads = 4
    assert len(state.tape.values) == reads + len(xs)
