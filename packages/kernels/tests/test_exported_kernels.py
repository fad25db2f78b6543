"""A kernel in an exported program is compiled on the platforms that compile it, and interpreted elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl

from torch_pjrt_kernels import pallas_op

quant = pytest.importorskip("torch_pjrt_quant", reason="torch-pjrt-quant exports programs")


def _gradient(grad: jax.Array, x: jax.Array, slope: float) -> jax.Array:
    """Three times what it is: so one sees that it is this one."""
    return 3 * jax.numpy.where(x > 0, grad, slope * grad)


@pallas_op("exported_test::leaky_relu", backward=_gradient)
def leaky_relu(x: jax.Array, slope: float = 0.01) -> jax.Array:
    """That of docs/kernels.md."""

    def kernel(x_ref: Any, y_ref: Any) -> None:
        x = x_ref[...]
        y_ref[...] = jax.numpy.where(x > 0, x, slope * x)

    rows = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, grid=(x.shape[0] // 8,), in_specs=[rows], out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x)  # fmt: skip


@pallas_op("exported_test::ordered")
def ordered(x: jax.Array) -> jax.Array:
    """A kernel that TPUs' compiler refuses: it sorts."""

    def kernel(x_ref: Any, y_ref: Any) -> None:
        y_ref[...] = jax.numpy.sort(x_ref[...], 1)

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return leaky_relu(x.sin(), slope=0.25) + 1


X = torch.randn(16, 128, generator=torch.Generator().manual_seed(0))
ALONE = """
import sys
for name in ("torch", "torch_pjrt", "torch_pjrt_quant", "torch_pjrt_kernels"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import numpy
from load import load
numpy.save(sys.argv[3], load(sys.argv[1])(numpy.load(sys.argv[2])))
"""


def calls(text: str) -> int:
    return len(re.findall(r"custom_call @tpu_custom_call", text))


@pytest.mark.filterwarnings("ignore:`exported_test..leaky_relu` is interpreted on cuda")
def test_it_runs_in_a_process_without_pytorch_and_is_a_kernel_on_tpus(tmp_path: Path) -> None:
    made = quant.export(Model(), (X,), platforms=["cpu", "tpu", "cuda"])

    assert calls(made.stablehlo()) == 1
    folder = made.save(tmp_path / "model")
    np.save(tmp_path / "x.npy", X.numpy())
    files = [folder, tmp_path / "x.npy", tmp_path / "y.npy"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = torch.nn.functional.leaky_relu(X.sin(), 0.25) + 1
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-6)


def test_for_one_platform_it_is_what_that_platform_runs() -> None:
    on_cpu, on_tpu = (quant.export(Model(), (X,), platforms=[p]) for p in ("cpu", "tpu"))

    assert (calls(on_cpu.stablehlo()), calls(on_tpu.stablehlo())) == (0, 1)
    assert "stablehlo.case" not in on_tpu.stablehlo()


def test_what_a_platform_does_not_compile_is_interpreted_there_and_said() -> None:
    x = X[:2].contiguous()

    with pytest.warns(UserWarning, match=r"`exported_test::ordered` is interpreted on tpu"):
        made = quant.export(_Calls(ordered), (x,), platforms=["cpu", "tpu"])

    assert calls(made.stablehlo()) == 0
    np.testing.assert_array_equal(made.jax().call(x.numpy())[0], x.sort(1).values)


def test_its_derivative_is_exported_too() -> None:
    made = quant.export(Model(), (X,), platforms=["cpu", "tpu"], gradient=True)

    _, pull = jax.vjp(made.jax().call, X.numpy())
    (found,) = pull((np.ones((16, 128), np.float32),))

    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(Model()(x.to("pjrt")).sum(), x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class _Calls(torch.nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x)
