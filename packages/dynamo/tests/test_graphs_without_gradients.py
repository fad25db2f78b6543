"""Graphs that need no gradient are recorded as Dynamo traced them, and do what they do without a compiler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Program = Callable[[Tensor, Tensor], Any]


def writes_to_a_view(x: Tensor, y: Tensor) -> Any:
    x[0].mul_(2)
    return x[1], x.t(), y


def writes_to_elements(x: Tensor, y: Tensor) -> Any:
    x[0, 1] = 5.0
    y[:, 0] = x[:, 1]
    return x * y


def writes_to_lists(x: Tensor, y: Tensor) -> Any:
    torch._foreach_mul_([x, y], 2.0)
    return torch._foreach_add([x, y], [y, x])


def writes_to_parts(x: Tensor, y: Tensor) -> Any:
    a, b, c = x.split(1)
    a.add_(1)
    return b, c, torch.cat([a, c])


def swaps(x: Tensor, y: Tensor) -> Any:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return ()


def shares_what_it_made(x: Tensor, y: Tensor) -> Any:
    z = x + y
    return z[0], z, z.t(), z.detach()


def attention(x: Tensor, y: Tensor) -> Any:
    q, k = x.reshape(1, 1, 3, 3), y.reshape(1, 1, 3, 3)
    return F.scaled_dot_product_attention(q, k, q, is_causal=True)


def sorts(x: Tensor, y: Tensor) -> Any:
    values, indices = x.sort(-1, descending=True)
    return values, indices, y.gather(1, indices)


def layers(x: Tensor, y: Tensor) -> Any:
    return F.layer_norm(x, (3,)), F.softmax(y, -1), F.gelu(x @ y)


def factories(x: Tensor, y: Tensor) -> Any:
    like = torch.ones_like(x), torch.full((2,), 1.5, device=x.device)
    return torch.zeros(3, device=x.device), torch.arange(3, device=x.device) + x[0], *like


DIRECT: dict[str, Program] = {
    "the arguments": lambda x, y: (x, y),
    "a view": lambda x, y: x.view(-1),
    "a view of everything": lambda x, y: (x[:], x, y.view(y.shape)),
    "an expanded view": lambda x, y: (x[:1].expand(3, 3), y.unsqueeze(0)),
    "no view": lambda x, y: (x.detach(), y.detach() + 1),
    "a write": lambda x, y: x.add_(y),
    "a write of another's": lambda x, y: (x.copy_(y.t()).sum(), y),
    "an `out=`": lambda x, y: torch.add(x, y, out=x),
    "constants": lambda x, y: (x.zero_(), y.fill_(3), x + y),
    "other dtypes": lambda x, y: (x.to(torch.bfloat16), x.double(), x.to(x.dtype), x.float()),
    "choices": lambda x, y: (torch.where(x > y, x, y), x.clamp(min=0), x.masked_fill(y > 0, 1.0)),
    "a product": lambda x, y: torch.einsum("ij,jk->ki", x, y),
    "results that are no tensors": lambda x, y: (None, x + 1, 3, "a"),
    **{
        f.__name__: f
        for f in (
            *(writes_to_a_view, writes_to_elements, writes_to_lists, writes_to_parts, swaps),
            *(shares_what_it_made, attention, sorts, layers, factories),
        )
    },
}
TRACED: dict[str, Program] = {
    "bits of an argument": lambda x, y: x.view(torch.int32),
    "complex numbers": lambda x, y: torch.complex(x, y).abs(),
    "control flow": lambda x, y: torch.cond(x.sum() > 0, torch.sin, torch.cos, (y,)),
    "a tensor on the host": lambda x, y: x.cpu() + 1,
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "gradients on": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def outcome(program: Program, mode: str) -> list[Any]:
    """Whatever can be seen of the arguments and results of a call: also who shares memory with whom."""
    x = torch.linspace(-1, 1, 9, device="pjrt").reshape(3, 3).clone()
    y = torch.linspace(2, -1, 9, device="pjrt").reshape(3, 3).clone()
    if mode == "no_grad":
        x, y = nn.Parameter(x), nn.Parameter(y)
    with MODES[mode]():
        results = program(x, y)
    results = results if isinstance(results, tuple | list) else [results]
    tensors = [x, y, *(r for r in results if isinstance(r, Tensor))]
    seen = [
        (t.shape, t.dtype, t.stride(), t.requires_grad, t.is_inference(), type(t)) for t in tensors
    ]
    storages = [t.untyped_storage()._cdata for t in tensors]
    together = [[a is b for b in tensors] for a in tensors]
    shared = [[a == b for b in storages] for a in storages]
    others = [r for r in results if not isinstance(r, Tensor)]
    values = [t.detach().cpu().double() for t in tensors]
    return [values, seen, together, shared, others]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DIRECT)
def test_a_call_does_what_it_does_without_a_compiler(name: str, mode: str, ways: list[str]) -> None:
    program = DIRECT[name]
    compiled = torch.compile(program, backend="pjrt", fullgraph=True)
    (values, *expected) = outcome(program, mode)

    for _ in range(2):
        got, *rest = outcome(compiled, mode)
        torch.testing.assert_close(got, values, rtol=1e-6, atol=1e-6)
        assert rest == expected
    assert set(ways) <= {"direct"}  # Dynamo makes no graph where there is nothing to compute


@pytest.mark.parametrize("name", TRACED)
def test_what_is_not_so_simple_is_traced_by_aotautograd(name: str, ways: list[str]) -> None:
    program = TRACED[name]
    compiled = torch.compile(program, backend="pjrt")
    (values, seen, *_) = outcome(program, "no_grad")

    got, looks, *_ = outcome(compiled, "no_grad")

    torch.testing.assert_close(got, values, rtol=1e-6, atol=1e-6)
    assert [x[:2] for x in looks] == [x[:2] for x in seen]
    assert "AOTAutograd" in ways


def test_a_gradient_is_recorded_with_its_backward(ways: list[str]) -> None:
    weight = nn.Parameter(torch.ones(3, device="pjrt"))
    compiled = torch.compile(lambda x: (weight * x).sum(), backend="pjrt")

    compiled(torch.arange(3.0, device="pjrt")).backward()

    assert weight.grad is not None
    assert weight.grad.tolist() == [0.0, 1.0, 2.0]
    assert ways == ["with gradients"]


def test_inputs_in_one_storage_are_aotautograds(ways: list[str]) -> None:
    whole = torch.zeros(4, device="pjrt")
    compiled = torch.compile(lambda a, b: (a.add_(1), b * 2)[1], backend="pjrt")

    assert compiled(whole[:3], whole[1:]).tolist() == [2.0, 2.0, 0.0]
    assert ways == ["AOTAutograd"]


def losses(kind: Any, *, is_compiled: bool) -> list[float]:
    """Of four steps, with a rate that is a tensor: steps with another are not traced.

    PyTorch counts compiled steps on the device; so does what is compared with them.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).to("pjrt")
    how: dict[str, Any] = {"momentum": 0.9, "nesterov": True} if kind is torch.optim.SGD else {}
    if not is_compiled and "capturable" in inspect.signature(kind).parameters:
        how["capturable"] = True
    optimizer = kind(model.parameters(), lr=torch.tensor(0.01, device="pjrt"), **how)
    x = torch.linspace(-1, 1, 24, device="pjrt").reshape(6, 4)

    def update() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    run = torch.compile(update, backend="pjrt") if is_compiled else update
    found = []
    for _ in range(4):
        loss = model(x).square().mean()
        loss.backward()
        run()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_a_step_of_an_optimizer_is_direct(name: str, ways: list[str]) -> None:
    kind = getattr(torch.optim, name)

    assert losses(kind, is_compiled=True) == pytest.approx(losses(kind, is_compiled=False), 1e-6)
    assert set(ways) == {"direct"}


def test_random_numbers_are_drawn_anew_in_each_call_and_repeat_by_seed(ways: list[str]) -> None:
    compiled = torch.compile(lambda x: F.dropout(x) + torch.rand_like(x), backend="pjrt")
    x = torch.ones(100, device="pjrt")

    def draws() -> list[list[float]]:
        torch.manual_seed(3)
        return [compiled(x).tolist() for _ in range(3)]

    first = draws()
    assert first[0] != first[1] != first[2]
    assert draws() == first
    assert ways == ["direct"]


def test_other_strides_are_recorded_anew(ways: list[str]) -> None:
    compiled = torch.compile(lambda x: x.add_(1), backend="pjrt", dynamic=False)
    for x in (torch.zeros(2, 3, device="pjrt"), torch.zeros(3, 2, device="pjrt").t()):
        compiled(x)
        assert x.tolist() == [[1.0] * 3] * 2
