"""Arguments of captured steps that nobody has written to, or of no elements: zeros, until they are others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_pjrt

N_CALLS = 9
MADE: dict[str, Callable[[int], torch.Tensor]] = {
    "empty": lambda n: torch.empty(n, device="pjrt"),
    "empty, strided": lambda n: torch.empty_strided((n,), (1,), device="pjrt"),
    "from the host": lambda n: torch.zeros(n, device="cpu").to("pjrt"),
    "zeros": lambda n: torch.zeros(n, device="pjrt"),
    "a list": lambda n: torch.tensor([0.0] * n, device="pjrt"),
}


def step() -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    weight = torch.arange(1.0, 5.0, device="pjrt")

    @torch_pjrt.capture
    def scaled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (weight.sum() * x * y).sum(), torch.cat([x, y])

    return scaled


@pytest.mark.parametrize("n_before", range(5))
@pytest.mark.parametrize("made", MADE)
def test_what_an_argument_holds_later_counts(made: str, n_before: int) -> None:
    """Nothing is in it in the calls that are recorded, or in some of them, or in those that are replayed."""
    scaled, x = step(), torch.ones(4, device="pjrt")

    for call in range(N_CALLS):
        y = MADE[made](4) if call < n_before else torch.full((4,), float(call), device="pjrt")
        total, both = scaled(x, y)
        wanted = 0.0 if call < n_before else float(call)
        assert (total.item(), both.tolist()) == (40 * wanted, [1.0] * 4 + [wanted] * 4)

    assert scaled.replays == N_CALLS - 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", MADE)
def test_argument_without_elements_is_replayed(made: str) -> None:
    scaled, x = step(), torch.ones(1, device="pjrt")

    for call in range(N_CALLS):
        _, both = scaled(x * call, MADE[made](0))
        assert both.tolist() == [call]

    assert scaled.replays == N_CALLS - 3  # type: ignore[attr-defined]


def test_result_that_is_given_as_memory_is_written() -> None:
    """It is never read, and holds nothing when the step begins."""

    @torch_pjrt.capture
    def add(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.add(x, 1, out=out)

    for call in range(N_CALLS):
        out = torch.empty(3, device="pjrt")
        add(torch.full((3,), float(call), device="pjrt"), out)
        assert out.tolist() == [call + 1.0] * 3

    assert add.replays == N_CALLS - 3  # type: ignore[attr-defined]
