"""Products by groups compile in each dtype that the CPU takes, of any sizes, and so do their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from torch_pjrt.extend import counters

OFFS = torch.tensor([3, 3, 8, 11], dtype=torch.int32)
SHAPES = {
    "rows": ((11, 6), (4, 6, 5)),
    "columns": ((4, 5, 6), (6, 11)),
    "sums": ((5, 11), (11, 6)),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def of_groups(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same by products of matrices, in float32."""
    ends, parts = OFFS.tolist(), []
    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if y.ndim == 3:
            parts.append(x[start:end].float() @ y[group].float())
        elif x.ndim == 3:
            parts.append(x[group].float() @ y[:, start:end].float())
        else:
            parts.append(x[:, start:end].float() @ y[start:end].float())
    if y.ndim == 3:
        return torch.cat(parts)
    return torch.cat(parts, 1) if x.ndim == 3 else torch.stack(parts)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", SHAPES)
def test_they_are_products_of_matrices(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(s, generator=generator).to(dtype) for s in SHAPES[kind])
    expected = of_groups(x, y).to(dtype)

    compiled = torch.compile(F.grouped_mm, backend="pjrt", fullgraph=True)
    found = compiled(x.to("pjrt"), y.to("pjrt"), offs=OFFS.to("pjrt"))

    assert found.dtype == dtype and found.shape == expected.shape
    torch.testing.assert_close(found.cpu(), expected)


def test_a_step_through_them_is_one_program_and_reads_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(s, generator=generator) for s in SHAPES["rows"])
    offs = OFFS.to("pjrt")
    there = [t.to("pjrt").requires_grad_() for t in (x, y)]
    compiled = torch.compile(
        lambda x, y: F.grouped_mm(x, y, offs=offs).square().sum(), backend="pjrt", fullgraph=True
    )
    compiled(*there).backward()
    for t in there:
        t.grad = None
    torch.accelerator.synchronize()
    before = counters.programs_run, counters.downloads, counters.fallbacks.total()

    compiled(*there).backward()
    torch.accelerator.synchronize()

    cost = counters.programs_run, counters.downloads, counters.fallbacks.total()
    assert [b - a for a, b in zip(before, cost, strict=True)] == [1, 0, 0]
    of_groups(x.requires_grad_(), y.requires_grad_()).square().sum().backward()
    for mine, theirs in zip(there, (x, y), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-5, atol=1e-5)
