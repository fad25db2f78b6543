"""Control flow is part of the program, with gradients where PyTorch has them; exported programs run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_of_pytorch

import torch_pjrt_dynamo
from torch_pjrt.extend import counters

Tensor = torch.Tensor

# Its annotation has a body take a tuple, which none does.
torch_map: Any = map_of_pytorch


def one_of_two(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2 + x, (x,))


def powers(x: Tensor) -> Tensor:
    i = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (i, x))[1]


def sums(x: Tensor) -> Tensor:
    last, each = scan(lambda c, y: (c + y, c * y), torch.zeros(3, device=x.device), x)
    return last + each.sum(0)


def mapped(x: Tensor) -> Tensor:
    return torch_map(lambda row, first: row * first + row.sum(), x, x.sum(0))


@pytest.mark.parametrize("function", [one_of_two, powers, sums, mapped], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sign", [1, -1])
def test_control_flow_is_one_program(
    function: Callable[[Tensor], Tensor], sign: int, programs: Any
) -> None:
    x = torch.linspace(0.1, 1.2, 12).reshape(4, 3) * sign
    before = counters.islands.total()
    compiled = torch.compile(function, backend="pjrt", fullgraph=True)
    mine = x.to("pjrt")
    compiled(mine).cpu()
    programs.forget()

    saw = compiled(mine).cpu()

    torch.testing.assert_close(saw, function(x))
    assert (programs.run, counters.islands.total()) == (1, before)


@pytest.mark.parametrize("function", [one_of_two, powers, sums, mapped], ids=lambda f: f.__name__)
def test_gradients_go_through_control_flow(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(0.1, 1.2, 12).reshape(4, 3)
    mine, wanted = x.to("pjrt").requires_grad_(), x.clone().requires_grad_()

    torch.compile(function, backend="pjrt", fullgraph=True)(mine).square().sum().backward()
    function(wanted).square().sum().backward()

    assert mine.grad is not None
    torch.testing.assert_close(mine.grad.cpu(), wanted.grad)


def test_gradient_of_a_while_loop_runs_by_itself_and_the_report_says_why() -> None:
    x = torch.ones(4, 3, device="pjrt").requires_grad_()
    before = counters.islands.copy()

    torch.compile(lambda x: powers(x).sin(), backend="pjrt", fullgraph=True)(x).sum().backward()

    [island] = counters.islands - before
    assert island == (
        "while_loop_stack_output: LoweringError: Programs have no rule for `while_loop_stack_output`."
    )


class Exported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        return {"y": self.layer(x), "n": x.shape[0]}


def test_autocast_casts_in_bodies() -> None:
    def square(x: Tensor) -> Tensor:
        return x.unsqueeze(-2) @ x.unsqueeze(-1)

    def flows(x: Tensor) -> list[Tensor]:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return [
                torch.cond(x.sum() > 0, square, lambda x: square(x) * 2, (x,)),
                torch_map(square, x),
                scan(lambda c, row: (c + 1, square(row)), x.new_zeros(()), x)[1],
            ]

    torch._dynamo.reset()
    x = torch.linspace(0.1, 1, 9).reshape(3, 3)

    results = torch.compile(flows, backend="pjrt", fullgraph=True)(x.to("pjrt"))

    for y in results:
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.cpu().float().flatten(), x.square().sum(1), atol=0, rtol=0.02)


def test_an_exported_program_runs() -> None:
    module = Exported()
    x = torch.randn(4, 3)
    program = torch.export.export(module, (x,))

    for given in (x, x.to("pjrt")):
        saw = torch_pjrt_dynamo.run(program, given)

        assert saw["y"].device == given.device
        torch.testing.assert_close(saw["y"].cpu(), module(x)["y"].detach())
        assert saw["n"] == 4
    assert {p.device.type for p in program.parameters()} == {"cpu"}
    torch.testing.assert_close(program.module()(x)["y"], module(x)["y"])
