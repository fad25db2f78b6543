"""Random chains of operators on what a mask selects, and their gradients, give what the CPU gives."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAINS = int(os.environ.get("TORCH_PJRT_TEST_PROGRAMS", "150"))

Tensor = torch.Tensor
Numbers = tuple[int, int]

# From what was selected, another of the same rows, and two numbers. All are differentiable, and stay finite.
STEPS: dict[str, Callable[[Tensor, Tensor, Numbers], Tensor]] = {
    "add a number": lambda y, z, n: y + n[0],
    "add the other": lambda y, z, n: y + z if y.shape == z.shape else y,
    "add rows": lambda y, z, n: y + y.mean(0, keepdim=True),
    "tanh": lambda y, z, n: torch.tanh(y),
    "square": lambda y, z, n: torch.tanh(y) ** 2,
    "relu": lambda y, z, n: y.relu(),
    "where": lambda y, z, n: torch.where(y > 0, y, -2 * y),
    "masked": lambda y, z, n: y.masked_fill(y > n[0], 0.5),
    "product": lambda y, z, n: torch.tanh(y @ y.transpose(-1, -2) @ y) if y.ndim > 1 else y,
    "weights": lambda y, z, n: y @ torch.eye(y.shape[-1], device=y.device) if y.ndim > 1 else y,
    "softmax": lambda y, z, n: y.softmax(n[0] % y.ndim),
    "log_softmax": lambda y, z, n: y.log_softmax(-1),
    "cumsum": lambda y, z, n: y.cumsum(n[0] % y.ndim),
    "sorted": lambda y, z, n: torch.tanh(y).sort(dim=n[0] % y.ndim, stable=True).values,
    "transposed": lambda y, z, n: y.transpose(0, -1).contiguous().transpose(0, -1),
    "moved": lambda y, z, n: (y.transpose(0, -1) * 2).transpose(0, -1),
    "column": lambda y, z, n: y[:, n[0] % y.shape[1]] if y.ndim > 1 else y,
    "columns": lambda y, z, n: y[:, n[0] % 2 :] if y.ndim > 1 else y,
    "unsqueezed": lambda y, z, n: y.unsqueeze(n[0] % (y.ndim + 1)).squeeze(n[0] % (y.ndim + 1)),
    "repeated": lambda y, z, n: y.unsqueeze(-1).expand(*y.shape, 2).sum(-1),
    "split": lambda y, z, n: y.view(-1, 2, 2).flip(1).reshape(-1, 4) if y.shape[1:] == (4,) else y,
    "flat": lambda y, z, n: y.reshape(-1),
    "tail": lambda y, z, n: y[n[0] % 2 :],
    "reversed": lambda y, z, n: y.flip(0),
    "joined": lambda y, z, n: torch.cat([y, y], n[0] % y.ndim),
    "stacked": lambda y, z, n: torch.stack([y, 2 * y], n[0] % 2).sum(n[0] % 2),
    "selected": lambda y, z, n: y[y > n[0] - 5] if n[1] % 2 else y[torch.tanh(y) > -0.5],
    "rows": lambda y, z, n: y[y[:, 0] > 0] if y.ndim > 1 else y[y > 0],
    "by indices": lambda y, z, n: y[torch.arange(len(y), device=y.device) // 2],
    "gathered": lambda y, z, n: y.gather(0, y.detach().argsort(dim=0, stable=True)),
    "added up": lambda y, z, n: torch.zeros_like(y).index_add(
        0, torch.zeros(len(y), dtype=torch.int64, device=y.device), y
    ),
    "standard": lambda y, z, n: y - y.std(-1, keepdim=True) if y.ndim > 1 else y - y.sum().tanh(),
    "norm": lambda y, z, n: y / (1 + torch.linalg.vector_norm(y, dim=n[0] % y.ndim, keepdim=True)),
}
ENDS: dict[str, Callable[[Tensor, Numbers], Tensor]] = {
    "sum": lambda y, n: y.sum(),
    "mean": lambda y, n: y.mean(),
    "rows": lambda y, n: y.sum(0).tanh().sum(),
    "columns": lambda y, n: y.mean(-1).tanh().sum(),
    "variance": lambda y, n: y.var(correction=n[0] % 2),
    "logsumexp": lambda y, n: y.flatten().logsumexp(0),
    "largest": lambda y, n: (y + torch.arange(y.numel(), device=y.device).view_as(y)).max(),
    "squares": lambda y, n: torch.nn.functional.mse_loss(y, torch.zeros_like(y)),
    "classes": lambda y, n: torch.nn.functional.cross_entropy(
        y.reshape(len(y), -1), torch.zeros(len(y), dtype=torch.int64, device=y.device)
    ),
}


@dataclass(frozen=True)
class Chain:
    """A mask as bits, whether it selects rows or elements, and what is done to what it selects."""

    bits: int
    rows: bool
    steps: tuple[tuple[str, Numbers], ...]
    end: str


digits = st.tuples(st.integers(0, 9), st.integers(0, 9))
chains = st.builds(
    Chain,
    st.integers(0, 2**20 - 1),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(list(STEPS)), digits), min_size=1, max_size=5).map(tuple),
    st.sampled_from(list(ENDS)),
)


def run(chain: Chain, device: str) -> list[Tensor] | tuple[type[Exception], str]:
    """What each step made, the end and the gradient; or how PyTorch refused."""
    torch.manual_seed(chain.bits)
    x = torch.randn(5, 4).to(device).requires_grad_()
    bits = torch.tensor([bool(chain.bits >> i & 1) for i in range(20)]).view(5, 4)
    mask = (bits[:, 0] if chain.rows else bits).to(device)
    made: list[Tensor] = []
    try:
        y, z = x[mask], (x * 2)[mask]
        for name, numbers in chain.steps:
            y = STEPS[name](y, z, numbers)
            made.append(y)
        end = ENDS[chain.end](y, chain.steps[0][1])
        end.backward()
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error), str(error).splitlines()[0].replace("pjrt:0", "cpu")
    assert x.grad is not None
    return [t.detach().cpu() for t in (*made, end, x.grad)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_chain_on_what_a_mask_selects_gives_what_the_cpu_gives(
    record_property: Callable[[str, object], None],
) -> None:
    n_ran = 0

    @settings(
        max_examples=CHAINS,
        deadline=None,
        derandomize=CHAINS <= 150,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),  # type: ignore[arg-type]
    )
    @given(chains)
    def compare(chain: Chain) -> None:
        nonlocal n_ran
        n_ran += 1
        expected, got = run(chain, "cpu"), run(chain, "pjrt")
        if isinstance(expected, tuple) or isinstance(got, tuple):
            assert got == expected
            return
        for ours, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)

    try:
        compare()
    finally:
        record_property("random programs", n_ran)
