"""What PyTorch promises of `torch.compile` holds: compiled, a function does what it does on CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import warm
from torch_pjrt.extend import counters

Tensor = torch.Tensor


def x_of(device: str) -> tuple[Tensor]:
    return (torch.arange(12.0).reshape(3, 4).to(device) / 7,)


def with_a_break(x: Tensor) -> Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def with_a_branch_on_values(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def with_a_closure(x: Tensor) -> Tensor:
    scale = x.sum()

    def inner(y: Tensor) -> Tensor:
        return y * scale

    return inner(x) + inner(x + 1)


def with_containers(x: Tensor) -> dict[str, Any]:
    parts = {"a": [x[0], x[1]], "b": (x.sum(), 3)}
    return {**parts, "c": x.mean(0)}


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.exp()
    return y * x


def with_inner_compile(x: Tensor) -> Tensor:
    return torch.compile(lambda y: y.sin() + 1, backend="pjrt")(x) * 2


def with_a_loop(x: Tensor) -> Tensor:
    for i in range(3):
        x = x + i * x.mean()
    return x


def with_print(x: Tensor) -> Tensor:
    y = x + 1
    print("between")
    return y.cos()


def with_sizes(x: Tensor) -> Any:
    return x.shape[0], x.numel() * 2, x.new_zeros(x.shape[1]), x.dtype


def with_indices(x: Tensor) -> Any:
    positions = torch.tensor([2, 0], device=x.device)
    return x[positions], x.gather(1, positions.expand(3, 2)), x[:, positions].sum()


FUNCTIONS = [
    *(with_a_break, with_a_branch_on_values, with_a_closure, with_containers, without_gradients),
    *(with_inner_compile, with_a_loop, with_print, with_sizes, with_indices),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_function_does_what_it_does_on_cpu(
    function: Callable[..., Any], agrees: Callable[..., None]
) -> None:
    agrees(function, x_of)


def test_autocast_inside_gives_cpu_s_dtypes() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = x @ x.t()
        return y, (y.float() @ x).sum()

    compiled = torch.compile(function, backend="pjrt")
    for device in ("cpu", "pjrt"):
        for saw, wanted in zip(compiled(*x_of(device)), function(*x_of("cpu")), strict=True):
            assert saw.dtype == wanted.dtype
            torch.testing.assert_close(saw.cpu(), wanted, rtol=2e-2, atol=2e-2)


def test_autocast_outside_is_not_applied_twice() -> None:
    layer = nn.Linear(4, 4).to("pjrt")
    compiled = torch.compile(layer, backend="pjrt")
    (x,) = x_of("pjrt")

    with torch.autocast("pjrt", dtype=torch.bfloat16):
        saw, wanted = compiled(x), layer(x)

    assert saw.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(saw, wanted)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_gradients_are_those_of_cpu(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    mine = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    mine.load_state_dict(model.state_dict())
    mine = mine.to(device)
    compiled = torch.compile(mine, backend="pjrt")

    for _ in range(2):  # they add up
        model(*x_of("cpu")).square().sum().backward()
        compiled(*x_of(device)).square().sum().backward()

    for p, q in zip(mine.parameters(), model.parameters(), strict=True):
        assert p.grad is not None and p.grad.device.type == device
        torch.testing.assert_close(p.grad.cpu(), q.grad)


def doubled(module: nn.Module, inputs: Any, output: Any) -> Any:
    return output * 2


def test_hooks_are_called() -> None:
    layer = nn.Linear(4, 4).to("pjrt")
    seen: list[str] = []
    layer.register_forward_hook(doubled)
    layer.weight.register_hook(lambda g: seen.append("weight"))
    compiled = torch.compile(layer, backend="pjrt")
    (x,) = x_of("pjrt")

    result = compiled(x)
    result.register_hook(lambda g: seen.append("result"))
    result.sum().backward()

    assert seen == ["result", "weight"]
    torch.testing.assert_close(result, 2 * nn.functional.linear(x, layer.weight, layer.bias))


def test_gradients_of_inputs_and_retained_graphs() -> None:
    compiled = torch.compile(lambda x: (x * x).sum(), backend="pjrt")
    x = torch.ones(3, device="pjrt", requires_grad=True)
    loss = compiled(x)

    loss.backward(retain_graph=True)
    loss.backward()

    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 4.0, 4.0]


def test_another_shape_is_compiled_anew_and_is_right() -> None:
    compiled = torch.compile(lambda x: x.softmax(-1).cumsum(0), backend="pjrt")
    for shape in ((3, 4), (5, 4), (6, 2), (1, 4), (3, 4)):
        x = torch.randn(shape)

        torch.testing.assert_close(compiled(x.to("pjrt")).cpu(), x.softmax(-1).cumsum(0))


def test_dynamo_explains_a_function_of_tensors_of_the_device() -> None:
    explanation = torch._dynamo.explain(with_a_break)(*x_of("pjrt"))

    assert (explanation.graph_count, explanation.graph_break_count) == (2, 1)


def test_eval_and_train_are_two_graphs() -> None:
    layer = nn.Dropout(0.5)
    compiled = torch.compile(layer, backend="pjrt")
    x = torch.ones(64, device="pjrt")

    assert compiled(x).tolist() != x.tolist()
    layer.eval()
    assert compiled(x).tolist() == x.tolist()


def test_fallbacks_do_not_count_where_there_are_none() -> None:
    before = counters.fallbacks.total()

    torch.compile(with_indices, backend="pjrt")(*x_of("pjrt"))

    assert counters.fallbacks.total() == before


def test_the_backend_is_found_by_its_name_without_an_import() -> None:
    code = "import torch, sys; print('pjrt' in torch._dynamo.list_backends(), 'jax' in sys.modules)"

    done = warm.run(["-c", code], os.environ)

    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_checkpointed_block_is_right() -> None:
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(4, 4).to("pjrt")

    def function(x: Tensor) -> Any:
        return checkpoint(lambda y: layer(y).tanh(), x, use_reentrant=False)

    grads = []
    for f in (function, torch.compile(function, backend="pjrt")):
        layer.zero_grad()
        f(*x_of("pjrt")).sum().backward()
        assert layer.weight.grad is not None
        grads.append(layer.weight.grad.cpu())

    torch.testing.assert_close(*grads)


def test_programs_that_write_their_device_as_text_run_there() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.to("cpu") * 2 + torch.ones(3, device="cpu") + x.new_zeros(3, device="cpu")

    x = torch.arange(3.0)

    results = torch.compile(function, backend="pjrt", fullgraph=True)(x)

    assert results.device.type == "cpu"
    assert torch.equal(results, function(x))
