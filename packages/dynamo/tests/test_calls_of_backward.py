"""Where a graph ends at a call of backward: the same graphs and gradients as by Dynamo's second try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo.utils as of_dynamo

from torch_pjrt_dynamo import calls_of_backward

Tensor = torch.Tensor
Step = Callable[[Tensor, Tensor], Any]


def plainly(x: Tensor, w: Tensor) -> Tensor:
    loss = (x @ w).tanh().square().mean()
    loss.backward()
    return loss.detach()


def with_arguments(x: Tensor, w: Tensor) -> Tensor:
    loss = (x @ w).tanh().sum(0)
    loss.backward(torch.ones_like(loss), retain_graph=True)
    return loss.detach() * 2


def by_position(x: Tensor, w: Tensor) -> None:
    (x @ w).sin().backward(x @ x[0, :, None] + 1)


def as_a_name(x: Tensor, w: Tensor) -> None:
    backward = (x @ w).sin().sum().backward
    backward()


def twice(x: Tensor, w: Tensor) -> Tensor:
    first = (x @ w).sin().sum()
    first.backward()
    second = (x @ w).cos().square().sum() * first.detach()
    second.backward()
    return second.detach()


def of_several(x: Tensor, w: Tensor) -> None:
    hidden = (x @ w).sin()
    (hidden.sum() + 1).backward(retain_graph=True)
    (hidden * 2).mean().backward()


def within_autocast(x: Tensor, w: Tensor) -> None:
    with torch.autocast("pjrt", dtype=torch.bfloat16):
        loss = (x @ w).float().sin().sum()
        loss.backward()


def within_a_try(x: Tensor, w: Tensor) -> Tensor:
    loss = (x @ w).sin().sum()
    try:
        loss.backward()
    finally:
        x = x + 1
    return x


def in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    for n in range(3):
        loss = (x @ w * n).sin().sum()
        loss.backward()
    return loss.detach()  # pyright: ignore[reportPossiblyUnbound]


def in_a_function_of_its_own(x: Tensor, w: Tensor) -> Tensor:
    return plainly(x, w) + 1


def where_a_value_says_so(x: Tensor, w: Tensor) -> Tensor:
    loss = (x @ w).square().sum()
    if loss > 0:
        loss.backward()
    return loss.detach()


def of_a_loss_that_changes_afterwards(x: Tensor, w: Tensor) -> Tensor:
    loss = (x @ w).sin().sum()
    kept = [loss]
    loss.backward()
    kept.append(kept[0].detach() + 1)
    return kept[1]


def to_one_leaf(x: Tensor, w: Tensor) -> None:
    other = x.detach().clone().requires_grad_()
    (other @ w).sum().backward(inputs=[w])


def with_nothing_behind_it(x: Tensor, w: Tensor) -> None:
    (x @ x.T).sum().backward()


def of_nothing_scalar(x: Tensor, w: Tensor) -> None:
    (x @ w).backward()


def with_an_argument_that_it_lacks(x: Tensor, w: Tensor) -> None:
    (x @ w).sum().backward(no_such=1)  # pyright: ignore[reportCallIssue]


STEPS: list[Step] = [
    plainly, with_arguments, by_position, as_a_name, twice, of_several, within_autocast, within_a_try,
    in_a_loop, in_a_function_of_its_own, where_a_value_says_so, of_a_loss_that_changes_afterwards,
    to_one_leaf, with_nothing_behind_it, of_nothing_scalar, with_an_argument_that_it_lacks,
]  # fmt: skip
# Dynamo leaves these to Python as a whole, or tries again for another reason.
WHOLE: tuple[Step, ...] = (in_a_loop, within_a_try, with_an_argument_that_it_lacks)
# Tries that are left: it comes to backward within a call, whose caller is traced again.
LEFT: dict[Step, int] = {in_a_function_of_its_own: 1}
OWN = "Unsupported Tensor.backward() call"  # why Dynamo tries again


@contextmanager
def dynamo_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls_of_backward, "_ends_graphs", lambda translator: False)
        yield


def seen(step: Step, **how: Any) -> dict[str, Any]:
    """What comes of a compiled step: its results, gradients and error, and what Dynamo says of it."""
    torch._dynamo.reset()
    of_dynamo.counters.clear()
    of_dynamo.clear_compilation_metrics()
    x = torch.linspace(-1, 2, 12).reshape(4, 3).to("pjrt")
    w = torch.linspace(0, 1, 3).reshape(3, 1).to("pjrt").requires_grad_()
    compiled = torch.compile(step, backend="pjrt", **how)
    results, error = [], None
    for _ in range(2):
        try:
            result = compiled(x, w)
        except Exception as raised:
            error = (type(raised), str(raised).partition("\n")[0])
        else:
            results.append(None if result is None else result.tolist())
    metrics = of_dynamo.get_compilation_metrics()
    return {
        "results": results,
        "gradient": None if w.grad is None else w.grad.tolist(),
        "error": error,
        "graphs": [(m.co_name, m.graph_op_count) for m in metrics],
        "breaks": dict(of_dynamo.counters["graph_break"]),
        "again": [reason for m in metrics for reason in m.restart_reasons or ()],
    }


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_graphs_are_those_of_a_second_try(step: Step) -> None:
    with dynamo_alone():
        wanted = seen(step)

    found = seen(step)

    again, wanted_again = found.pop("again"), wanted.pop("again")
    assert found == wanted
    tries, wanted_tries = (sum(OWN in reason for reason in r) for r in (again, wanted_again))
    assert tries == LEFT.get(step, 0)
    assert (wanted_tries > tries) is (step not in WHOLE)
    assert len(again) == len(wanted_again) - (wanted_tries - tries)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_one_graph_is_refused_as_ever(step: Step) -> None:
    with dynamo_alone():
        wanted = seen(step, fullgraph=True)

    assert seen(step, fullgraph=True) == wanted
    assert wanted["error"] is not None


def test_backward_that_dynamo_traces_is_left_to_it() -> None:
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        found = seen(plainly)
    wanted = seen(plainly)

    assert (found["breaks"], found["again"]) == ({}, [])
    assert found["gradient"] == wanted["gradient"]


def test_losses_of_the_cpu_are_left_to_dynamo() -> None:
    seen(plainly)
    of_dynamo.clear_compilation_metrics()
    torch._dynamo.reset()
    w = torch.ones(3, 1, requires_grad=True, device="cpu")

    torch.compile(plainly, backend="aot_eager")(torch.ones(4, 3, device="cpu"), w)

    metrics = of_dynamo.get_compilation_metrics()
    assert any(OWN in reason for m in metrics for reason in m.restart_reasons or ())
