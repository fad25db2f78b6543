"""Random numbers on the device follow PyTorch's seeds, and a new seed compiles nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fixture_types import Count


def draws(n: int = 4) -> list[float]:
    return torch.rand(n, device="pjrt").tolist()


def test_manual_seed_repeats_the_numbers() -> None:
    torch.manual_seed(1)
    first, second = draws(), draws()
    torch.manual_seed(1)

    assert draws() == first
    assert draws() == second
    assert first != second


def test_another_seed_gives_other_numbers() -> None:
    torch.manual_seed(1)
    first = draws()
    torch.manual_seed(2)

    assert draws() != first


@pytest.mark.parametrize("seed", [0, -1, 2**32 + 1, 2**63, 2**64 - 1])
def test_seed_of_all_64_bits_counts(seed: int) -> None:
    torch.manual_seed(seed)
    first = draws()
    torch.manual_seed(seed)
    assert draws() == first
    torch.manual_seed(seed ^ (1 << 40) if seed >= 0 else 1)
    assert draws() != first


def test_seed_of_the_device_alone_leaves_the_cpus_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    torch.pjrt.manual_seed(7)  # type: ignore[attr-defined]
    first = draws()
    torch.pjrt.manual_seed_all(7)  # type: ignore[attr-defined]

    assert torch.equal(torch.rand(2), expected)
    assert draws() == first
    assert torch.pjrt.initial_seed() == 7  # type: ignore[attr-defined]


def test_seeding_in_the_middle_of_a_program_starts_anew_there() -> None:
    torch.manual_seed(5)
    a = torch.rand(3, device="pjrt")
    torch.manual_seed(5)
    b = torch.rand(3, device="pjrt")
    torch.manual_seed(6)
    c = torch.rand(3, device="pjrt")

    assert torch.equal(a.cpu(), b.cpu())
    assert not torch.equal(b.cpu(), c.cpu())


def test_where_programs_end_changes_no_number() -> None:
    torch.manual_seed(9)
    together = [torch.rand(2, device="pjrt") for _ in range(4)]
    together = [t.tolist() for t in together]
    torch.manual_seed(9)

    assert [torch.rand(2, device="pjrt").tolist() for _ in range(4)] == together


def test_state_goes_back_to_where_it_was_taken() -> None:
    draws()
    state = torch.pjrt.get_rng_state()  # type: ignore[attr-defined]
    first = draws()

    torch.pjrt.set_rng_state(state)  # type: ignore[attr-defined]

    assert draws() == first


def test_state_taken_while_draws_are_pending_counts_them() -> None:
    torch.manual_seed(4)
    pending = torch.rand(3, device="pjrt")
    state = torch.pjrt.get_rng_state()  # type: ignore[attr-defined]
    after = torch.rand(3, device="pjrt")

    torch.pjrt.set_rng_state(state)  # type: ignore[attr-defined]

    assert draws(3) == after.tolist()
    assert pending.tolist() != after.tolist()


def test_wrong_state_is_refused() -> None:
    with pytest.raises(RuntimeError, match="16 bytes"):
        torch.pjrt.set_rng_state(torch.zeros(3))  # type: ignore[attr-defined]


def test_forked_generator_leaves_the_outer_numbers_alone() -> None:
    torch.manual_seed(2)
    expected = draws()
    torch.manual_seed(2)

    with torch.random.fork_rng(device_type="pjrt"):
        torch.manual_seed(99)
        draws()

    assert draws() == expected


def test_seeds_and_draws_compile_nothing_new(compiled: Count) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        (torch.randn(5, device="pjrt") + 1).sum().item()
        (torch.randn(5, device="pjrt") + 1).sum().item()

    assert compiled() <= 2


def test_seeds_from_which_nothing_is_drawn_make_no_other_program(compiled: Count) -> None:
    def drawn(*seeds: int) -> list[list[float]]:
        torch.manual_seed(1)
        a = torch.rand(3, device="pjrt")
        for seed in seeds:
            torch.manual_seed(seed)
        return torch.stack([a, torch.rand(3, device="pjrt")]).tolist()

    expected = drawn(7)
    n_compiled = compiled()

    assert drawn(5, 6, 7) == expected
    assert drawn(7, 7) == expected
    assert drawn(8) != expected
    assert compiled() == n_compiled


def test_dropout_draws_another_mask_each_time_and_scales() -> None:
    torch.manual_seed(0)
    x = torch.ones(10_000, device="pjrt")
    dropout = nn.Dropout(0.25)

    first, second = dropout(x).cpu(), dropout(x).cpu()

    assert not torch.equal(first, second)
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert first.max().item() == pytest.approx(1 / 0.75)


def test_dropout_is_the_identity_in_evaluation() -> None:
    x = torch.ones(100, device="pjrt")

    assert torch.equal(nn.Dropout(0.5).eval()(x).cpu(), torch.ones(100))


def test_gradient_of_dropout_uses_the_mask_of_the_forward_pass() -> None:
    x = torch.ones(1000, device="pjrt", requires_grad=True)

    y = nn.functional.dropout(x, 0.5)
    y.sum().backward()

    assert torch.equal((y.detach() != 0).cpu(), (x.grad != 0).cpu())


@pytest.mark.slow("rows")
@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("sync", [True, False])
def test_checkpoint_replays_the_same_mask(use_reentrant: bool, sync: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Tanh(), nn.Linear(64, 1)).to("pjrt")
    x = torch.randn(16, 8, device="pjrt", requires_grad=True)
    gradients = []

    for replay in (True, False):
        torch.manual_seed(11)
        y = checkpoint(model, x, use_reentrant=use_reentrant) if replay else model(x)
        if sync:
            torch.pjrt.synchronize()  # type: ignore[attr-defined]
        y.sum().backward()
        gradients.append(x.grad.cpu())
        x.grad = None

    torch.testing.assert_close(*gradients)


MOMENTS = {
    "rand": (lambda n: torch.rand(n, device="pjrt"), 1 / 2, 1 / 12),
    "randn": (lambda n: torch.randn(n, device="pjrt"), 0, 1),
    "randint": (lambda n: torch.randint(0, 10, (n,), device="pjrt"), 4.5, 99 / 12),
    "bernoulli": (lambda n: torch.bernoulli(torch.full((n,), 0.3, device="pjrt")), 0.3, 0.21),
    "normal_": (lambda n: torch.empty(n, device="pjrt").normal_(2, 3), 2, 9),
    "uniform_": (lambda n: torch.empty(n, device="pjrt").uniform_(-1, 3), 1, 16 / 12),
    "exponential_": (lambda n: torch.empty(n, device="pjrt").exponential_(2.0), 1 / 2, 1 / 4),
    "normal": (lambda n: torch.normal(torch.full((n,), 5.0, device="pjrt"), 2.0), 5, 4),
    "rand in float64": (
        lambda n: torch.rand(n, device="pjrt", dtype=torch.float64),
        1 / 2,
        1 / 12,
    ),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_numbers_have_mean_and_variance_of_their_distribution(name: str) -> None:
    draw, mean, variance = MOMENTS[name]
    torch.manual_seed(0)

    x = draw(40_000).cpu().double()

    # Six standard errors: the seed is fixed, so this does not come and go.
    assert x.mean().item() == pytest.approx(mean, abs=6 * (variance / 40_000) ** 0.5)
    assert x.var().item() == pytest.approx(variance, rel=0.1)


def test_randperm_is_a_permutation() -> None:
    assert sorted(torch.randperm(50, device="pjrt").tolist()) == list(range(50))


def test_multinomial_without_replacement_draws_each_once() -> None:
    drawn = torch.multinomial(torch.ones(4, 6, device="pjrt"), 6)

    assert drawn.sort(1).values.tolist() == [list(range(6))] * 4


def test_tensors_of_one_program_get_numbers_of_their_own() -> None:
    a, b = torch.rand(100, device="pjrt"), torch.rand(100, device="pjrt")

    assert not torch.equal(a.cpu(), b.cpu())


def test_dropout_in_place_may_leave_its_probability_to_the_default():
    x = torch.ones(1000, device="pjrt")

    torch.nn.functional.dropout(x, inplace=True)

    assert set(x.tolist()) == {0.0, 2.0}
