"""A kernel with a sharding rule computes on each chip that chip's parts, forward and backward."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl

import torch_pjrt
from torch_pjrt.errors import LoweringError
from torch_pjrt_kernels import pallas_op
from torch_pjrt_kernels.own import sharding
from torch_pjrt_spmd import Mesh, mark_sharding, sharding_of

SEEN: list[tuple[int, ...]] = []
EXCHANGES = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def _gradient(grad: jax.Array, x: jax.Array, w: jax.Array, c: float) -> tuple[Any, Any]:
    return grad * w * c, (grad * x * c).sum(0)


@pallas_op("sharding_tests::scaled", sharding_rule="b d, d -> b d", backward=_gradient)
def scaled(x: jax.Array, w: jax.Array, c: float = 1.0) -> jax.Array:
    SEEN.append(x.shape)

    def kernel(x_ref: Any, w_ref: Any, y_ref: Any) -> None:
        y_ref[...] = x_ref[...] * w_ref[...] * c

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, w)


@pallas_op("sharding_tests::softmax", sharding_rule="b d -> b e")
def softmax(x: jax.Array) -> jax.Array:
    """Of whole rows: no dim of the result is called `d`."""
    return jax.nn.softmax(x, -1)


@pallas_op("sharding_tests::taken", sharding_rule="r w, n, n -> n w, n")
def taken(
    table: jax.Array, rows: jax.Array, more: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Rows of a table; an array of integers, one that may be missing, two results."""
    found = jnp.take(table, rows, 0)
    return (found if more is None else found + more[:, None]), rows * 2


X, W = torch.randn(16, 8), torch.randn(8)
ROWS = torch.arange(16, dtype=torch.int32) % 5

#   how x and w are spread          each chip's part of x     sums of gradients
SPREAD: list[tuple[Any, Any, tuple[int, int], int]] = [
    (("data", None), (None,), (4, 8), 1),
    (("data", "model"), ("model",), (4, 4), 1),
    ((None, "model"), (None,), (16, 4), 0),
    ((("data", "model"), None), (None,), (2, 8), 1),
]


def mesh() -> Mesh:
    return Mesh((4, 2), ("data", "model"))


def leaf(x: torch.Tensor, spec: Any) -> torch.Tensor:
    return mark_sharding(x.to("pjrt"), mesh(), spec).requires_grad_()


def scaled_with_gradients(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    y = scaled(x, w, 3.0)
    return [y, *torch.autograd.grad((y * y).sum(), (x, w))]


def check_as_on_cpu(found: list[torch.Tensor], x: torch.Tensor) -> None:
    """Raise unless these are the product of `x`, `W` and 3, and its gradients."""
    on_cpu = [t.clone().requires_grad_() for t in (x, W)]
    y = on_cpu[0] * on_cpu[1] * 3
    expected = [y, *torch.autograd.grad((y * y).sum(), on_cpu)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("of_x", "of_w", "part", "sums"), SPREAD)
def test_each_chip_computes_its_part_and_gradients_are_summed(
    of_x: Any, of_w: Any, part: tuple[int, int], sums: int
) -> None:
    x, w = leaf(X, of_x), leaf(W, of_w)

    SEEN.clear()
    explained = torch_pjrt.explain(lambda: scaled_with_gradients(x, w))

    check_as_on_cpu(explained.result, X)
    lies = sharding_of(explained.result[0])
    assert lies is not None
    assert lies.spec == of_x
    assert part in SEEN
    text = str(explained)
    assert not any(name in text for name in EXCHANGES)
    assert text.count("all-reduce") == sums


def test_a_dim_that_no_result_has_is_whole_on_each_chip() -> None:
    x = leaf(X, ("data", "model"))

    explained = torch_pjrt.explain(lambda: [softmax(x)])

    torch.testing.assert_close(explained.result[0].detach().cpu(), X.softmax(-1))
    assert "all-gather" in str(explained)


def test_integers_and_missing_arrays_and_several_results_are_split_too() -> None:
    table = leaf(X, (None, "model"))
    rows = mark_sharding(ROWS.to("pjrt"), mesh(), ("data",))

    found, doubled = taken(table, rows)
    (of_table,) = torch.autograd.grad(found.sum(), table)

    torch.testing.assert_close(found.detach().cpu(), X[ROWS.long()])
    torch.testing.assert_close(doubled.cpu(), ROWS * 2)
    counts = torch.zeros(16).index_add(0, ROWS.long(), torch.ones(16))
    torch.testing.assert_close(of_table.cpu(), counts[:, None].expand(16, 8))


@pytest.mark.parametrize("absent", ["the module", "the pipeline"])
def test_without_shardys_pipeline_arrays_are_gathered_and_values_stay(
    absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 24 if absent == "the module" else 32  # so that the program is none that is there already
    if absent == "the module":
        monkeypatch.setitem(sys.modules, "jaxlib.mlir.passmanager", None)
    else:
        monkeypatch.setattr(sharding, "_PIPELINE", "no-such-pipeline")
    of_x = torch.randn(rows, 8)
    x, w = leaf(of_x, ("data", "model")), leaf(W, ("model",))

    SEEN.clear()
    with pytest.warns(UserWarning, match="does not say how arrays of kernels lie on a mesh"):
        explained = torch_pjrt.explain(lambda: scaled_with_gradients(x, w))

    check_as_on_cpu(explained.result, of_x)
    assert {*SEEN} == {(rows, 8)}
    assert "all-gather" in str(explained)


def test_a_batch_of_vmap_is_split_as_well() -> None:
    x = leaf(torch.stack([X] * 4), ("data", None, "model"))
    w = leaf(W, (None,))

    def run() -> list[torch.Tensor]:
        y = torch.vmap(scaled, (0, None))(x, w)
        return [y, *torch.autograd.grad(y.sum(), (x, w))]

    y, of_x, of_w = torch_pjrt.explain(run).result

    torch.testing.assert_close(y.detach().cpu(), (X * W).expand(4, 16, 8))
    torch.testing.assert_close(of_x.cpu(), W.expand(4, 16, 8))
    torch.testing.assert_close(of_w.cpu(), 4 * X.sum(0), rtol=1e-5, atol=1e-5)


def test_sizes_that_chips_cannot_share_evenly_are_whole() -> None:
    x = mark_sharding(X[:6].contiguous().to("pjrt"), mesh(), (None, "model"))

    y = scaled(x, leaf(W, (None,)))

    torch.testing.assert_close(y.detach().cpu(), X[:6] * W)


def test_rules_that_do_not_fit_are_refused() -> None:
    with pytest.raises(LoweringError, match="for 2 arrays -> for 1 results"):
        pallas_op("sharding_tests::wrong", lambda x, y: x, sharding_rule="i j -> i j")
    with pytest.raises(LoweringError, match="does not fit its arrays"):
        pallas_op("sharding_tests::wrong_too", lambda x: x, sharding_rule="i j")
    three = pallas_op("sharding_tests::three", lambda x: x, sharding_rule="i j k -> i j k")
    with pytest.raises(LoweringError, match=r"other dims than its array"):
        three(leaf(X, ("data", None))).cpu()
