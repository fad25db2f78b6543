"""A JAX function is an operator: PyTorch's values and gradients, one node of the same program."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import torch_pjrt
from torch_pjrt import jax_function


def swish(x: jax.Array, beta: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(beta * x)


def swish_in_torch(x: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


def inputs(device: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-2, 2, 12, dtype=dtype).view(3, 4)
    return tuple(t.to(device).requires_grad_() for t in (x, torch.tensor(1.5, dtype=dtype)))  # type: ignore[return-value]


def test_values_and_gradients_are_those_of_pytorch() -> None:
    there, here = inputs("cpu"), inputs("pjrt")
    expected = swish_in_torch(*there)
    expected.square().sum().backward()

    result = jax_function(swish)(*here)
    result.square().sum().backward()

    torch.testing.assert_close(result.cpu(), expected)
    for mine, its in zip(here, there, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), its.grad)


def test_derivatives_of_both_orders_are_right() -> None:
    x, beta = inputs("pjrt", torch.float64)

    assert gradcheck(jax_function(swish), (x, beta))
    assert gradgradcheck(jax_function(swish), (x, beta))


def test_gradient_of_complex_numbers_is_pytorchs() -> None:
    x = torch.tensor([1 + 2j, -0.5 + 0.25j], dtype=torch.complex128)
    there, here = x.clone().requires_grad_(), x.to("pjrt").requires_grad_()
    (there * there.exp()).abs().sum().backward()

    jax_function(lambda z: z * jnp.exp(z))(here).abs().sum().backward()

    assert here.grad is not None
    torch.testing.assert_close(here.grad.cpu(), there.grad)


def test_function_s_own_derivative_is_used() -> None:
    @jax.custom_vjp
    def odd(x: jax.Array) -> jax.Array:
        return x * 2

    odd.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 100,))
    x = torch.ones(2, device="pjrt", requires_grad=True)

    jax_function(odd)(x).sum().backward()

    assert x.grad is not None and x.grad.tolist() == [100, 100]


class Point(NamedTuple):
    x: Any
    y: Any


def test_pytrees_static_values_and_keywords_are_passed() -> None:
    def function(tree: Any, power: int, *, mode: str, nothing: None = None) -> Any:
        assert mode == "up" and nothing is None
        point, rest = tree["point"], tree["rest"]
        return {"sum": point.x + point.y, "powers": [r**power for r in rest]}

    tree = {
        "point": Point(torch.ones(2, device="pjrt"), torch.ones(2, device="pjrt")),
        "rest": [torch.full((3,), 2.0, device="pjrt")],
    }

    result = jax_function(function)(tree, 3, mode="up", nothing=None)

    assert result["sum"].tolist() == [2, 2]
    assert result["powers"][0].tolist() == [8, 8, 8]


def test_static_values_are_told_apart() -> None:
    scale = jax_function(lambda x, by: x * by)
    x = torch.ones(2, device="pjrt")

    assert scale(x, 2).tolist() == [2, 2]
    assert scale(x, 3).tolist() == [3, 3]
    assert scale(x, -0.0).signbit().all()
    assert not scale(x, 0.0).signbit().any()


def test_integers_have_no_gradient_and_do_not_stop_that_of_others() -> None:
    def pick(table: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        return table[positions], positions * 2

    table = torch.arange(6.0, device="pjrt").requires_grad_()
    rows, doubled = jax_function(pick)(table, torch.tensor([1, 1, 5]).to("pjrt"))
    rows.sum().backward()

    assert table.grad is not None and table.grad.tolist() == [0, 2, 0, 0, 0, 1]
    assert doubled.dtype == torch.int64 and not doubled.requires_grad


def test_result_that_is_not_used_takes_no_gradient() -> None:
    x = torch.ones(2, device="pjrt", requires_grad=True)

    first, _ = jax_function(lambda x: (x * 3, x * 5))(x)
    first.sum().backward()

    assert x.grad is not None and x.grad.tolist() == [3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    result = jax_function(lambda x: x + jnp.zeros((3,), x.dtype))(
        torch.ones(3, dtype=dtype, device="pjrt")
    )

    assert result.dtype == dtype


def test_types_that_jax_chooses_are_those_of_its_own_configuration() -> None:
    result = jax_function(lambda x: (x, jnp.arange(3), jnp.zeros(2)))(torch.ones(1, device="pjrt"))

    assert [r.dtype for r in result] == [torch.float32, torch.int32, torch.float32]


def test_call_is_one_node_of_the_program(compiled: Callable[[], int]) -> None:
    x = torch.ones(4, device="pjrt")
    before = torch_pjrt.report().as_dict()["operators"]

    y = jax_function(swish)(x * 2, x) + 1
    torch_pjrt.sync()

    assert compiled() == 1
    assert torch_pjrt.report().as_dict()["operators"] - before <= 4  # ones, mul, swish, add
    assert y.shape == (4,)


def test_training_compiles_as_often_as_with_operators_of_pytorch(
    compiled: Callable[[], int],
) -> None:
    def train(activation: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> int:
        before = compiled()
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4).to("pjrt")
        beta = torch.nn.Parameter(torch.ones((), device="pjrt"))
        optimizer = torch.optim.AdamW([*layer.parameters(), beta])
        for _ in range(20):
            activation(layer(torch.ones(2, 4).to("pjrt")), beta).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return compiled() - before

    assert train(jax_function(swish)) == train(swish_in_torch)


def test_wrapping_the_same_function_in_each_step_does_not_compile_anew(
    compiled: Callable[[], int],
) -> None:
    x = torch.ones(3, device="pjrt")
    torch_pjrt.sync()
    before = compiled()

    for _ in range(5):
        x = jax_function(swish)(x, x)
        torch_pjrt.sync()

    assert compiled() - before == 1


def test_functions_that_look_alike_do_not_share_a_program() -> None:
    def times(n: int) -> Callable[..., Any]:
        return lambda x: x * n

    x = torch.ones(2, device="pjrt")

    assert [jax_function(times(n))(x).sum().item() for n in range(4)] == [0, 2, 4, 6]


def test_function_that_was_dropped_is_computed_all_the_same() -> None:
    x = torch.ones(2, device="pjrt", requires_grad=True)

    y = jax_function(lambda x: x * 7)(x)
    gc.collect()
    y.sum().backward()
    gc.collect()

    assert y.tolist() == [7, 7]
    assert x.grad is not None and x.grad.tolist() == [7, 7]


def test_function_and_what_it_holds_are_freed() -> None:
    held = jnp.ones(1234)

    def function(x: jax.Array) -> jax.Array:
        return x + held.sum()

    gone = weakref.ref(function)
    y = jax_function(function)(torch.ones(2, device="pjrt"))
    torch_pjrt.sync()
    del function
    jax.clear_caches()
    gc.collect()

    assert gone() is None
    assert y.tolist() == [1235, 1235]


def test_results_can_be_written_to_and_viewed() -> None:
    x = torch.ones(2, 3, device="pjrt")

    y = jax_function(lambda x: x * 2)(x)
    y[0] += 1
    y.t().mul_(2)

    assert y.tolist() == [[6, 6, 6], [4, 4, 4]]
    assert x.sum().item() == 6


def test_views_and_strides_are_read_as_they_look() -> None:
    x = torch.arange(6.0, device="pjrt").view(2, 3)

    assert jax_function(lambda x: x[0])(x.t()).tolist() == [0, 3]


def test_tensors_whose_size_their_values_decide_are_cut() -> None:
    x = torch.arange(6.0, device="pjrt")

    assert jax_function(lambda x: jnp.stack([x.sum(), x.size * 1.0]))(x[x > 2]).tolist() == [12, 3]


def test_jitted_functions_partials_and_methods_work() -> None:
    class Scaler:
        def scale(self, x: jax.Array) -> jax.Array:
            return x * 3

    x = torch.ones(2, device="pjrt")

    for function in (jax.jit(lambda x: x * 3), functools.partial(jnp.multiply, 3), Scaler().scale):
        assert jax_function(function)(x).tolist() == [3, 3]


def test_host_tensors_come_back_to_the_host() -> None:
    there = inputs("cpu")

    result = jax_function(swish)(*there)
    result.sum().backward()

    assert result.device.type == "cpu"
    assert all(t.grad is not None and t.grad.device.type == "cpu" for t in there)
    torch.testing.assert_close(result, swish_in_torch(*there))


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        jax_function(swish)(torch.ones(2, device="pjrt"), torch.ones(2))


def test_what_is_neither_tensor_nor_static_is_refused() -> None:
    with pytest.raises(TypeError, match="hashable"):
        jax_function(lambda x, y: x)(torch.ones(2, device="pjrt"), {1, 2})
    with pytest.raises(TypeError, match="without a tensor"):
        jax_function(swish)(1.0, 2.0)
    with pytest.raises(TypeError, match="takes a function"):
        jax_function(3)  # type: ignore[arg-type]


def test_error_of_the_function_is_raised_at_the_call() -> None:
    x = torch.ones(2, device="pjrt")

    with pytest.raises(TypeError, match="incompatible shapes"):
        jax_function(lambda a, b: a + b)(x, torch.ones(3, device="pjrt"))

    assert (x + 1).tolist() == [2, 2]


def test_transformations_of_torch_func_go_through() -> None:
    square = jax_function(lambda x, y: (x * x).sum() + y)
    x = torch.arange(6.0, device="pjrt").view(3, 2)
    y = torch.ones((), device="pjrt")

    assert torch.func.grad(square)(x[:, 1], y).tolist() == [2, 6, 10]
    assert torch.vmap(square, in_dims=(1, None))(x, y).tolist() == [21, 36]
    per_sample = torch.vmap(torch.func.grad(square), in_dims=(0, None))(x, y)
    assert per_sample.tolist() == [[0, 2], [4, 6], [8, 10]]


def test_functions_of_one_name_in_two_processes_do_not_share_a_program_on_disk(
    python: Any, tmp_path: Any
) -> None:
    script = """
import torch, torch_pjrt
@torch_pjrt.jax_function
def scaled(x):
    return x * {}
print(scaled(torch.ones(2, device="pjrt")).tolist())
"""
    told = [
        python(script.format(n), TORCH_PJRT_CACHE_DIR=str(tmp_path)).stdout.strip() for n in (2, 3)
    ]

    assert told == ["[2.0, 2.0]", "[3.0, 3.0]"]
