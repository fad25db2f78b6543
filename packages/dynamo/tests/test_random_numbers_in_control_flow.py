"""Bodies of control flow draw new numbers in each iteration and call; backward sees those of forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_of_pytorch

import torch_pjrt
from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import counters

pytestmark = pytest.mark.slow

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]
dropout = nn.functional.dropout

# Its annotation has a body take a tuple, which none does.
torch_map: Any = map_of_pytorch


def compiled(function: Callable[..., Tensor], **how: Any) -> Function:
    torch._dynamo.reset()
    return torch.compile(function, backend="pjrt", fullgraph=True, **how)


def in_cond(x: Tensor, draw: Function) -> Tensor:
    return torch.cond(x.sum() > 0, draw, lambda x: draw(x) * 2, (x,))


def in_map(x: Tensor, draw: Function) -> Tensor:
    return torch_map(draw, x)


def in_scan(x: Tensor, draw: Function) -> Tensor:
    return scan(lambda c, y: (c + 1, draw(y)), x.new_zeros(()), x)[1]


def in_while_loop(x: Tensor, draw: Function) -> Tensor:
    """A row of the result in each iteration."""
    rows = torch.arange(len(x), device=x.device)[:, None]

    def iteration(i: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.where(rows == i, draw(x.index_select(0, i.reshape(1))), made)

    i = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, _: i < len(x), iteration, (i, torch.zeros_like(x)))[1]


def scan_of_cond(x: Tensor, draw: Function) -> Tensor:
    def iteration(c: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return c + 1, torch.cond(c < 2, draw, lambda y: draw(y) * 3, (y,))

    return scan(iteration, x.new_zeros(()), x)[1]


def map_of_cond(x: Tensor, draw: Function) -> Tensor:
    return torch_map(
        lambda y: torch.cond(y.sum() > 5, draw, lambda y: torch.rand_like(y) * draw(y), (y,)), x
    )


def cond_of_map(x: Tensor, draw: Function) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: torch_map(lambda y: draw(y) * 3, x), draw, (x,))


LOOPS = [in_map, in_scan, in_while_loop]
FLOWS = [in_cond, *LOOPS]
WITH_GRADIENTS = [in_cond, in_map, in_scan, scan_of_cond, map_of_cond, cond_of_map]
named: dict[str, Any] = {"ids": lambda f: f.__name__}


def dropped_twice(x: Tensor) -> Tensor:
    """Backward has no use for the first draw, and so does not draw it."""
    return torch.rand_like(x).mul(0) + dropout(dropout(x, 0.25) * torch.rand_like(x), 0.5)


@pytest.mark.parametrize("flow", FLOWS, **named)
def test_calls_draw_other_numbers_that_repeat_after_manual_seed(flow: Any, programs: Any) -> None:
    x = torch.ones(4, 16, device="pjrt")
    draw = compiled(lambda x: flow(x, dropped_twice))
    islands = counters.islands.total()
    for _ in range(2):
        draw(x).tolist()
    programs.forget()

    torch.manual_seed(5)
    first, second = draw(x).tolist(), draw(x).tolist()
    torch.manual_seed(5)
    again = draw(x).tolist()

    assert first == again
    assert first != second
    assert (programs.compiled, programs.run, counters.islands.total()) == (0, 3, islands)


@pytest.mark.parametrize("flow", LOOPS, **named)
def test_iterations_draw_independent_uniform_numbers(flow: Any) -> None:
    torch.manual_seed(1)

    saw = compiled(lambda x: flow(x, torch.rand_like))(torch.ones(16, 4096, device="pjrt")).cpu()

    assert saw.unique().numel() > saw.numel() * 0.99
    torch.testing.assert_close(saw.mean(1), torch.full((16,), 0.5), atol=0.02, rtol=0)
    torch.testing.assert_close(saw.var(1), torch.full((16,), 1 / 12), atol=0.01, rtol=0)
    torch.testing.assert_close(torch.corrcoef(saw), torch.eye(16), atol=0.08, rtol=0)


@pytest.mark.parametrize("flow", LOOPS, **named)
def test_draws_of_one_iteration_are_independent(flow: Any) -> None:
    torch.manual_seed(2)

    def difference(x: Tensor) -> Tensor:
        return torch.randn_like(x) - torch.randn_like(x)

    saw = compiled(lambda x: flow(x, difference))(torch.ones(16, 4096, device="pjrt")).cpu()

    torch.testing.assert_close(saw.var(1), torch.full((16,), 2.0), atol=0.25, rtol=0)


@pytest.mark.parametrize("sign", [1, -1])
def test_both_branches_draw(sign: int) -> None:
    x = torch.ones(4096, device="pjrt") * sign

    saw = compiled(lambda x: in_cond(x, torch.rand_like))(x).cpu()

    assert abs(float(saw.mean()) - (0.5 if sign > 0 else 1.0)) < 0.05


@pytest.mark.parametrize("flow", FLOWS, **named)
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_all_or_nothing_is_exact(flow: Any, p: float) -> None:
    x = torch.linspace(0.5, 2, 12).reshape(3, 4).to("pjrt")

    # Some versions of PyTorch give the argument itself where p is 0, which a body must not return.
    saw = compiled(lambda x: flow(x, lambda x: dropout(x.clone(), p)))(x).cpu()

    assert saw.tolist() == (x * (1 - p)).tolist()


@pytest.mark.parametrize("flow", FLOWS, **named)
def test_later_draws_do_not_repeat_those_of_bodies(flow: Any) -> None:
    x = torch.ones(4, 64, device="pjrt")
    twice = compiled(lambda x: torch.stack([flow(x, torch.rand_like), flow(x, torch.rand_like)]))

    saw = [torch.rand_like(x), *twice(x), torch.rand_like(x), *twice(x), torch.rand_like(x)]

    drawn = torch.stack(saw).cpu() % 1
    assert drawn.unique().numel() > drawn.numel() - 3  # 24 bits


def test_a_body_draws_on_after_another_number_of_iterations() -> None:
    def until(x: Tensor, bound: Tensor) -> Tensor:
        i = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(
            lambda i, _: i < bound, lambda i, x: (i + 1, x + torch.rand_like(x)), (i, x)
        )[1]

    def later(iterations: int) -> list[float]:
        torch.manual_seed(3)
        draw(torch.zeros(8, device="pjrt"), torch.tensor(iterations, device="pjrt")).tolist()
        return torch.rand(4, device="pjrt").tolist()

    draw: Any = torch.compile(until, backend="pjrt", fullgraph=True)

    assert later(2) == later(7)


def test_the_test_of_a_while_loop_draws_other_numbers_than_its_body() -> None:
    def first_above(x: Tensor) -> Tensor:
        """The last number that a test saw is not known; how often they went on is."""
        i = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(
            lambda i, _: torch.rand((), device=i.device) < 0.75,
            lambda i, x: (i + 1, torch.maximum(x, torch.rand((), device=x.device))),
            (i, x),
        )[1]

    draw = compiled(first_above)
    torch.manual_seed(4)

    saw = torch.stack([draw(torch.zeros((), device="pjrt")).cpu() for _ in range(50)])

    assert float(saw.max()) > 0.75
    assert saw.unique().numel() > 20


def ratio(flow: Any, x: Tensor, draw: Function, **how: Any) -> tuple[Tensor, Tensor]:
    """Of what is linear in each element of `x`: results over `x`, and gradients. They are equal."""
    function = compiled(lambda x: flow(x, draw), **how)
    y = x
    for _ in range(2):  # another call, other numbers
        x = x.detach().requires_grad_()
        y = function(x)
        y.sum().backward()
    assert x.grad is not None
    assert 0 < int((y == 0).sum()) < y.numel()
    return (y / x).detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("flow", WITH_GRADIENTS, **named)
@pytest.mark.parametrize("device", ["pjrt", "cpu"])
def test_backward_sees_the_masks_of_forward(flow: Any, device: str) -> None:
    x = torch.linspace(0.1, 3, 32).reshape(4, 8).to(device)

    factors, gradients = ratio(flow, x, dropped_twice)

    torch.testing.assert_close(gradients, factors)


def test_backward_of_the_other_branch_sees_its_mask() -> None:
    x = -torch.linspace(0.1, 3, 32).reshape(4, 8).to("pjrt")

    factors, gradients = ratio(in_cond, x, dropped_twice)

    torch.testing.assert_close(gradients, factors)


@pytest.mark.parametrize("flow", [in_cond, in_map, in_scan], **named)
@pytest.mark.parametrize("budget", [0, 0.1])
def test_what_is_computed_again_within_a_budget_sees_the_masks_of_forward(
    flow: Any, budget: float
) -> None:
    x = torch.linspace(0.1, 3, 32).reshape(4, 8).to("pjrt")

    factors, gradients = ratio(flow, x, dropped_twice, options={"memory_budget": budget})

    torch.testing.assert_close(gradients, factors)


def test_several_on_one_line_see_their_own_masks() -> None:
    def chain(x: Tensor, draw: Function) -> Tensor:
        for _ in range(3):
            x = in_cond(x, draw)
        return x

    x = torch.linspace(0.1, 3, 64).to("pjrt")

    factors, gradients = ratio(chain, x, lambda x: dropout(x, 0.3))

    torch.testing.assert_close(gradients, factors)


@pytest.mark.parametrize("flow", [in_cond, in_map, in_scan], **named)
def test_sizes_that_vary_see_the_masks_of_forward(flow: Any) -> None:
    islands = counters.islands.total()
    function = compiled(lambda x: flow(x, dropped_twice), dynamic=True)
    for n in (3, 5, 8):
        x = torch.linspace(0.1, 3, 8 * n).reshape(n, 8).to("pjrt").requires_grad_()

        y = function(x)
        y.sum().backward()

        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), (y / x).detach().cpu())
    assert counters.islands.total() == islands


@pytest.mark.parametrize("budget", [0, 1])
def test_a_while_loop_without_gradient_keeps_its_draws(budget: float) -> None:
    function: Any = compiled(
        lambda x, z: x * in_while_loop(z, torch.rand_like), options={"memory_budget": budget}
    )
    x = torch.linspace(0.1, 3, 32).reshape(4, 8).to("pjrt").requires_grad_()

    y = function(x, torch.ones(4, 8, device="pjrt"))
    y.sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), (y / x).detach().cpu())


def test_a_branch_chosen_by_a_size_sees_the_mask_of_forward() -> None:
    function = compiled(
        lambda x: torch.cond(x.shape[0] > 3, dropped_twice, lambda x: dropout(x, 0.3) * 4, (x,)),
        dynamic=True,
    )
    for n in (3, 4, 5, 2):
        x = torch.linspace(0.1, 3, 16 * n).reshape(n, 16).to("pjrt").requires_grad_()

        y = function(x)
        y.sum().backward()

        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), (y / x).detach().cpu())


@torch._dynamo.allow_in_graph
def difference_of_draws(x: Tensor) -> Tensor:
    return torch.rand_like(x) - torch.rand_like(x)


def test_draws_of_one_call_are_independent_beside_those_that_backward_repeats() -> None:
    def draw(x: Tensor) -> tuple[Tensor, Tensor]:
        return dropout(x, 0.5), difference_of_draws(x.detach())

    x = torch.linspace(0.1, 3, 32).reshape(4, 8).to("pjrt").requires_grad_()
    function: Any = compiled(lambda x: torch_map(draw, x))

    y, difference = function(x)
    y.sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), (y / x).detach().cpu())
    assert 0 not in difference.cpu()


@torch.library.custom_op("torch_pjrt_tests::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    """What looks at values."""
    return x.cpu().sin().to(x.device)


@sine.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


sine.register_autograd(
    lambda ctx, g: g * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_gradients_of_what_cannot_be_part_of_a_program_are_refused() -> None:
    x = torch.ones(3, 4, device="pjrt", requires_grad=True)

    with pytest.raises(LoweringError, match="random numbers that backward needs too"):
        compiled(lambda x: in_cond(x, lambda x: dropout(sine(x))))(x)


def test_gradients_of_a_while_loop_that_draws_are_refused() -> None:
    x = torch.ones(3, 4, device="pjrt", requires_grad=True)

    with pytest.raises(Exception, match=r"Backward \(`while_loop`\) of .* would draw others"):
        compiled(lambda x: in_while_loop(x, dropout))(x)


def test_gradients_that_cannot_be_told_which_draw_is_theirs_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch_pjrt_dynamo.backend.put_marks", lambda module: None)
    x = torch.ones(3, 4, device="pjrt", requires_grad=True)

    with pytest.raises(Exception, match="no mark tells from others"):
        compiled(lambda x: in_map(x, dropout))(x)


def test_replays_of_a_captured_step_draw_on() -> None:
    weights = torch.ones(4, 64).to("pjrt").requires_grad_()
    function = compiled(lambda x: in_scan(x, dropped_twice))

    @torch_pjrt.capture
    def step() -> tuple[Tensor, Tensor]:
        weights.grad = None
        y = function(weights)
        y.sum().backward()
        assert weights.grad is not None
        return y.detach(), weights.grad

    def several() -> list[list[float]]:
        torch.manual_seed(6)
        seen = []
        for _ in range(4):
            y, gradient = step()
            torch.testing.assert_close(gradient.cpu(), y.cpu())
            seen.append(y.flatten().tolist())
        return seen

    first = several()
    before = counters.replays
    again = several()

    assert counters.replays == before + 4
    assert first == again
    assert len(set(map(tuple, first))) == 4


@pytest.mark.parametrize("roll", ["on", "off"])
@pytest.mark.parametrize("flow", [in_cond, in_map, in_while_loop], **named)
def test_layers_of_one_program_draw_other_numbers(
    flow: Any, roll: str, programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_pjrt.config, "roll_layers", roll)
    layer = compiled(lambda x: flow(x, torch.rand_like))
    x = torch.ones(4, 64).to("pjrt")
    layer(x).tolist()
    programs.forget()
    loops = counters.loops

    results = []
    for _ in range(6):
        x = layer(x) + 1
        results.append(x)
    drawn = torch.stack(results).cpu()

    assert (programs.run, counters.loops - loops) == (1, int(roll == "on"))
    assert drawn.unique().numel() > drawn.numel() - 3
