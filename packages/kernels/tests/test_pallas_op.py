"""A user's kernel is an operator of PyTorch: recorded, compiled, differentiated, batched, rolled, on disk."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl

import torch_pjrt
from torch_pjrt.errors import LoweringError, PluginError
from torch_pjrt_kernels import pallas_op


def _scaled_sum(x_ref: Any, y_ref: Any, out_ref: Any, *, factor: float) -> None:
    out_ref[...] = x_ref[...] * factor + y_ref[...]


def plain(x: jax.Array, y: jax.Array, factor: float = 2.0) -> jax.Array:
    """What the kernel computes."""
    return x * factor + y


@functools.partial(pallas_op, "pallas_test::axpy", gradient_of=plain)
def axpy(x: jax.Array, y: jax.Array, factor: float = 2.0) -> jax.Array:
    """Eight rows at a time."""
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(_scaled_sum, factor=factor),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // 8,),
        in_specs=[rows, rows],
        out_specs=rows,
    )(x, y)


def _squares_and_sums(x: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    total = x.sum(-1)
    return x * x, total if bias is None else total + bias


squares_and_sums = pallas_op("pallas_test::squares_and_sums", _squares_and_sums)


def _halved(grad: jax.Array, x: jax.Array) -> jax.Array:
    """Not the gradient of the identity: so one sees that it is this one that runs."""
    return grad / 2


same = pallas_op("pallas_test::same", lambda x: x + 0, backward=_halved, fingerprint="1")


def x_and_y(device: str = "pjrt") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(16, 128, generator=generator).to(device) for _ in range(2))
    return x.requires_grad_(), y


def test_call_is_recorded_and_the_kernel_is_interpreted_on_a_cpu() -> None:
    x, y = x_and_y()

    torch.testing.assert_close(axpy(x, y, 3.0).cpu(), (x * 3 + y).cpu())
    torch.testing.assert_close(axpy(x, y=y).cpu(), (x * 2 + y).cpu())


def test_gradient_is_that_of_the_function_that_is_given_for_it() -> None:
    x, y = x_and_y()

    (grad,) = torch.autograd.grad((axpy(x, y, 3.0) * y).sum(), x)

    torch.testing.assert_close(grad.cpu(), 3 * y.cpu())


def test_gradient_is_jaxs_where_none_is_given_also_of_several_results() -> None:
    x, _ = x_and_y()
    squares, sums = squares_and_sums(x)

    (grad,) = torch.autograd.grad(squares.sum() + 5 * sums.sum(), x)
    (of_one,) = torch.autograd.grad(squares_and_sums(x)[0].sum(), x)

    torch.testing.assert_close(grad.cpu(), (2 * x + 5).cpu())
    torch.testing.assert_close(of_one.cpu(), (2 * x).cpu())


def test_array_may_be_left_out() -> None:
    x, _ = x_and_y()
    bias = torch.ones(16, device="pjrt").requires_grad_()

    _, sums = squares_and_sums(x, bias)

    torch.testing.assert_close(sums.cpu(), (x.sum(-1) + 1).cpu())
    assert torch.autograd.grad(sums.sum(), bias)[0].cpu().eq(1).all()


def test_backward_that_is_given_is_the_one_that_runs() -> None:
    x, y = x_and_y()

    (grad,) = torch.autograd.grad((same(x) * y).sum(), x)

    torch.testing.assert_close(grad.cpu(), y.cpu() / 2)


def test_compiled_function_has_it_as_one_node_with_its_gradient() -> None:
    x, y = x_and_y()
    doubled = torch.compile(lambda x, y: axpy(x, y, 4.0) * 2, fullgraph=True)

    out = doubled(x, y)

    torch.testing.assert_close(out.cpu(), ((x * 4 + y) * 2).cpu())
    assert torch.autograd.grad(out.sum(), x)[0].cpu().eq(8).all()


def test_captured_step_has_it() -> None:
    x, y = x_and_y()

    def step(x: torch.Tensor) -> torch.Tensor:
        return axpy(x.detach(), y, 3.0) + 1

    captured = torch_pjrt.capture(step)

    found = [captured(x) for _ in range(4)]

    torch.testing.assert_close(found[-1].cpu(), (x * 3 + y + 1).cpu())


def test_vmap_batches_it_and_differentiates_that() -> None:
    _, y = x_and_y()
    x = torch.randn(3, 16, 128, device="pjrt").requires_grad_()

    out = torch.vmap(axpy, (0, None))(x, y)

    torch.testing.assert_close(out.cpu(), (x * 2 + y).cpu())
    assert torch.autograd.grad(out.sum(), x)[0].cpu().eq(2).all()


def test_layers_that_repeat_with_it_are_rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pjrt.config, "roll_layers", "on")
    x, y = x_and_y()
    out = x
    for _ in range(8):
        out = axpy(out.tanh(), y, 0.5)

    text = torch_pjrt.to_stablehlo([out])

    assert "stablehlo.while" in text
    assert text.count("stablehlo.tanh") == 1


def test_tensors_of_the_cpu_go_through_the_device() -> None:
    x, y = (t.detach() for t in x_and_y("cpu"))

    found = axpy(x, y, 3.0)

    assert found.device.type == "cpu"
    torch.testing.assert_close(found, x * 3 + y)


def test_compiled_ahead_for_a_tpu_the_kernel_is_in_the_program() -> None:
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")
    x, y = x_and_y("meta")

    text = torch_pjrt.compile_for("v5e:2x2", lambda x, y: axpy(x, y, 4.0), x, y).text()

    assert "tpu_custom_call" in text


def test_error_names_the_line_of_the_kernel() -> None:
    def wrong(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] @ x_ref[...]

    @functools.partial(pallas_op, "pallas_test::wrong")
    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(wrong, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    line = wrong.__code__.co_firstlineno + 1
    with pytest.raises(LoweringError, match=rf"`pallas_test::wrong` failed at .*ops?\.py:{line}\."):
        call(x_and_y()[0])


def test_what_cannot_be_an_operator_is_refused() -> None:
    def of_dicts(x: dict[str, int]) -> jax.Array:
        return jnp.zeros(3)

    with pytest.raises(LoweringError, match=r"`of_dicts` \(.*\) cannot be an operator"):
        pallas_op("pallas_test::of_dicts", of_dicts)
    with pytest.raises(PluginError, match=r"operator `pallas_test::axpy` already"):
        pallas_op("pallas_test::axpy", plain)
    with pytest.raises(PluginError, match=r"is no name of an operator"):
        pallas_op("axpy", plain)
    with pytest.raises(LoweringError, match=r"(?s)without 64-bit types.*x\.float\(\)"):
        axpy(x_and_y()[0].double(), x_and_y()[1])


SCRIPT = """
import torch, torch_pjrt, kernel_of_mine
from torch_pjrt.extend import counters
x = torch.ones(8, device="pjrt")
print(float(kernel_of_mine.thrice(x).sum()), counters.programs_loaded)
"""
MODULE = """
import jax
from torch_pjrt_kernels import pallas_op

def _thrice(x: jax.Array) -> jax.Array:
    return x * 3

thrice = pallas_op("of_mine::thrice", _thrice)
"""


@pytest.mark.slow
def test_program_with_a_kernel_of_a_module_is_kept_on_disk_until_the_module_changes(
    tmp_path: Path,
) -> None:
    module = tmp_path / "kernel_of_mine.py"
    module.write_text(MODULE)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "TORCH_PJRT_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> tuple[float, int]:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, check=False
        )
        assert done.returncode == 0, done.stderr
        total, loaded = done.stdout.split()
        return float(total), int(loaded)

    assert run() == (24.0, 0)
    assert run() == (24.0, 1)
    module.write_text(MODULE.replace("x * 3", "x * 4 "))
    assert run() == (32.0, 0)


doubled_by_hand = pallas_op(
    "pallas_test::by_hand", lambda x, w: x * w, fingerprint="1",
    backward=lambda grad, x, w: (grad * w * 2, (grad * x * 2).sum(0)),
)  # fmt: skip


@pytest.mark.parametrize("dims", [(0, None), (1, 0), (None, 1)])
def test_gradient_that_is_given_is_that_of_a_batch_too(dims: tuple[int | None, int | None]) -> None:
    sizes = ((8, 4), (4,))
    leaves = [
        torch.randn(s if d is None else (*s[:d], 3, *s[d:]))
        for s, d in zip(sizes, dims, strict=True)
    ]
    ours = [x.to("pjrt").requires_grad_() for x in leaves]

    y = torch.vmap(doubled_by_hand, dims)(*ours)
    found = torch.autograd.grad(y.sum(), ours)

    theirs = [x.clone().requires_grad_() for x in leaves]
    expected = torch.vmap(lambda x, w: x * w, dims)(*theirs)
    torch.testing.assert_close(y.detach().cpu(), expected.detach())
    for a, b in zip(found, torch.autograd.grad(2 * expected.sum(), theirs), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)
