"""Products over flattened dims are products over the dims themselves, and give the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from small_gpt import WAYS, trained

from torch_pjrt import config
from torch_pjrt_spmd import program_reports
from torch_pjrt_spmd.unflattening import unflatten

# Batch, sequence, width, outputs, heads, width of a head, one more. No other product of them is N.
B, S, W, M, H, D, T = 6, 8, 16, 10, 2, 8, 3
N = B * S

MESH = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "sequence", "model"))
X, W_OUT = ("data", "sequence", None), (None, "model")


@dataclass(frozen=True)
class Case:
    """A function that flattens dims to one of `flat`; `stays` says that a value of this size is left.

    arguments   the shape of each, and how it lies; integers where the shape ends in `int`.
    """

    compute: Callable[..., Any]
    arguments: list[tuple[Any, Any]]
    stays: bool = False
    flat: int = N


def flat(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


def back(x: Any) -> Any:
    return x.reshape(B, S, *x.shape[1:])


def saved_in_a_loop(x: Any, w: Any) -> Any:
    """Layers in a loop that keeps flattened inputs, and a loop back that takes products with them."""

    def forward(x: Any, w: Any) -> Any:
        return jnp.tanh(back(flat(x) @ w)), flat(x)

    def backward(g: Any, of_layer: Any) -> Any:
        w, kept = of_layer
        return back(flat(g) @ w.T), flat(g).T @ kept

    y, kept = lax.scan(forward, x, w)
    return lax.scan(backward, y, (w, kept), reverse=True)


def nested_loops(x: Any, w: Any) -> Any:
    def outer(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, y: jnp.sin(y @ w), x), None

    return back(lax.scan(outer, flat(x), w)[0])


def sorted_in_a_loop(x: Any, w: Any) -> Any:
    return back(lax.fori_loop(0, 2, lambda _, y: jnp.sort(y @ w, 0), flat(x)))


def called_twice(x: Any, w: Any) -> Any:
    @jax.jit
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    return back(layer(layer(flat(x), w), w))


def cross_entropy(x: Any, i: Any) -> Any:
    logs = jax.nn.log_softmax(flat(x))
    at = i.reshape(-1)
    of_targets = jnp.take_along_axis(logs, at[:, None], 1)[:, 0]
    return -jnp.sum(jnp.where(at != 3, of_targets, 0)) / jnp.sum(at != 3)


def marked(x: Any, w: Any) -> Any:
    y = flat(x) @ w
    return back(lax.with_sharding_constraint(y, NamedSharding(MESH, PartitionSpec("data"))))


def on_each_chip(x: Any, w: Any) -> Any:
    return jax.shard_map(
        lambda x, w: (x.reshape(-1, W) @ w).reshape(*x.shape[:2], -1),
        mesh=MESH,
        in_specs=(PartitionSpec(*X), PartitionSpec(*W_OUT)),
        out_specs=PartitionSpec("data", "sequence", "model"),
    )(x, w)


def in_a_branch(x: Any, w: Any) -> Any:
    y = flat(x)
    return back(lax.cond(w[0, 0] > 0, lambda: y @ w, lambda: jnp.cos(y) @ w))


of_x, of_w = ((B, S, W), X), ((W, M), W_OUT)
of_g, of_bias = ((B, S, M), (*X[:2], "model")), ((M,), ("model",))
of_square, of_layers = ((W, W), W_OUT), ((T, W, W), (None, None, "model"))
of_heads = ((B, H, S, D), ("data", "model", "sequence"))
of_targets = ((B, S, "int"), ("data", "sequence"))

CASES: dict[str, Case] = {
    # Products.
    "free dim of the left operand": Case(lambda x, w: back(flat(x) @ w), [of_x, of_w]),
    "free dim of the right operand":
        Case(lambda x, w: (w.T @ flat(x).T).reshape(M, B, S), [of_x, of_w]),
    "summed dim": Case(lambda x, g: flat(x).T @ flat(g), [of_x, of_g]),
    "summed dim, transposed result": Case(lambda x, g: (flat(g).T @ flat(x)).T, [of_x, of_g]),
    "summed dim, no transposes":
        Case(lambda x, g: jnp.einsum("nw,no->wo", flat(x), flat(g)), [of_x, of_g]),
    "both free": Case(lambda x, g: jnp.einsum("nw,mo->nmwo", flat(x), flat(g)).sum(), [of_x, of_g]),
    "a product with a vector": Case(lambda x, w: back(flat(x) @ w[:, 0]), [of_x, of_w]),
    "a norm": Case(lambda x: x.reshape(-1) @ x.reshape(-1), [of_x], flat=N * W),
    "batches of heads":
        Case(lambda q, k: jnp.einsum("nsd,ntd->nst", *[t.reshape(B * H, S, D) for t in (q, k)])
             .reshape(B, H, S, S) * 2, [of_heads, of_heads], flat=B * H),
    "heads that become the width":
        Case(lambda y, w: back(y.transpose(0, 2, 1, 3).reshape(N, H * D) @ w), [of_heads, of_w]),
    "width that becomes heads":
        Case(lambda x, w: (flat(x) @ w).reshape(B, S, H, D).transpose(0, 2, 1, 3),
             [of_x, of_square]),
    "the gradient of heads":
        Case(lambda y, x: y.transpose(0, 2, 1, 3).reshape(N, H * D).T @ flat(x), [of_heads, of_x]),
    "three dims": Case(lambda x, w: (flat(x) @ w).reshape(B, S, T, M),
                       [((B, S, T, W), X), of_w], flat=N * T),
    "three dims, two of them back": Case(lambda x, w: (flat(x) @ w).reshape(B, S * T, M),
                                         [((B, S, T, W), X), of_w], flat=N * T),
    "dims in another order":
        Case(lambda x, w: (flat(x.transpose(1, 0, 2)) @ w).reshape(S, B, M), [of_x, of_w]),
    "dims of one element":
        Case(lambda x, w: (flat(x[:, None, :, None]) @ w).reshape(B, 1, S, M), [of_x, of_w]),
    "in halves":
        Case(lambda x, w: back(flat(x).astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)),
             [of_x, of_w]),
    # What is between.
    "bias": Case(lambda x, w, b: back(b + flat(x) @ w), [of_x, of_w, of_bias]),
    "bias as a row": Case(lambda x, w, b: back(b[None] + flat(x) @ w), [of_x, of_w, of_bias]),
    "an MLP": Case(lambda x, w: back(jax.nn.gelu(flat(x) @ w, approximate=False) @ w.T),
                   [of_x, of_w]),
    "softmax": Case(lambda x: back(jax.nn.softmax(flat(x))), [of_x]),
    "select and clamp": Case(lambda x, w: back(jnp.where(w[0, 0] > 0, jnp.clip(flat(x), -1, 1),
                                                        flat(x) > 0)), [of_x, of_w]),
    "a barrier": Case(lambda x: back(lax.optimization_barrier(flat(x) * 2)), [of_x]),
    "positions along another dim":
        Case(lambda x: back(flat(x) * lax.broadcasted_iota(jnp.float32, (N, W), 1)), [of_x]),
    "positions along the dim":
        Case(lambda x: back(flat(x) * lax.broadcasted_iota(jnp.float32, (N, W), 0)), [of_x],
             stays=True),
    "a table": Case(lambda x: back(flat(x) + np.arange(N, dtype=np.float32)[:, None]), [of_x],
                    stays=True),
    # Sums.
    "the gradient of a bias": Case(lambda g: flat(g).sum(0), [of_g]),
    "a sum that keeps the dim": Case(lambda g: back(flat(g).sum(1)), [of_g]),
    "a maximum": Case(lambda g: flat(g).max(0), [of_g]),
    "the place of a maximum": Case(lambda g: back(flat(g).argmax(1)), [of_g]),
    "the place along the dim": Case(lambda g: flat(g).argmax(0), [of_g], stays=True),
    # What is looked up.
    "cross entropy": Case(cross_entropy, [of_g, of_targets]),
    "the gradient of cross entropy":
        Case(jax.grad(cross_entropy), [of_g, of_targets], stays=True),
    "rows of a table":
        Case(lambda i, w: back(w[i.reshape(-1)]), [of_targets, of_w]),
    "rows of a flat value": Case(lambda x, i: flat(x)[i], [of_x, of_targets], stays=True),
    "sums of rows, dims that chips divide":
        Case(lambda g, i: jnp.zeros((12, M)).at[i.reshape(-1)].add(flat(g)),
             [((8, 16, M), X), ((8, 16, "int"), X)], flat=128),
    "sums of rows, dims that chips do not divide":
        Case(lambda g, i: jnp.zeros((12, M)).at[i.reshape(-1)].add(flat(g)),
             [of_g, of_targets], stays=True),
    # Loops, functions, regions.
    "layers in a loop":
        Case(lambda x, w: lax.scan(lambda x, w: (back(flat(x) @ w), None), x, w)[0],
             [of_x, of_layers]),
    "a loop that keeps flat values": Case(saved_in_a_loop, [of_x, of_layers]),
    "a loop of flat values": Case(nested_loops, [of_x, of_layers]),
    "a loop of flat values that are sorted": Case(sorted_in_a_loop, [of_x, of_square], stays=True),
    "a function called twice": Case(called_twice, [of_x, of_square]),
    "branches": Case(in_a_branch, [of_x, of_w], stays=True),
    "a function on each chip": Case(on_each_chip, [of_x, of_w], flat=N // 4),
    # What is left as it is, at least in part.
    "a flat result": Case(lambda x, w: flat(x) @ w, [of_x, of_w], stays=True),
    "a flat result that is cut too":
        Case(lambda x, w: (flat(x) @ w, back(flat(x) @ w)), [of_x, of_w], stays=True),
    "a flat value that is sorted too":
        Case(lambda x, w: (jnp.sort(flat(x) @ w, 0), back(flat(x) @ w)), [of_x, of_w], stays=True),
    "a flat value that is marked": Case(marked, [of_x, of_w], stays=True),
    "dims that it was not made of": Case(lambda x, w: (flat(x) @ w).reshape(4, 12, M), [of_x, of_w],
                                         stays=True),
    "more dims than it was made of":
        Case(lambda x, w: (flat(x) @ w).reshape(2, 3, S, M), [of_x, of_w]),
    "two values flattened otherwise":
        Case(lambda x, y: back(flat(x) * flat(y)), [of_x, ((S, B, W), X)], stays=True),
    "no elements": Case(lambda x, w: (flat(x) @ w).reshape(0, S, M), [((0, S, W), ()), of_w],
                        stays=True, flat=0),
    "part of a flat value":
        Case(lambda x, w: back(lax.dynamic_slice(flat(x), (0, 2), (N, 8)) @ w[:8]), [of_x, of_w]),
    "part along the dim":
        Case(lambda x, w: lax.dynamic_slice(flat(x), (2, 0), (8, W)) @ w, [of_x, of_w], stays=True),
    "a whole gradient":
        Case(lambda x, w: jax.grad(lambda w: jnp.sum(jnp.tanh(flat(x) @ w) ** 2))(w),
             [of_x, of_w]),
}  # fmt: skip


def made(shape: Any, spec: Any, number: int) -> Any:
    generator = np.random.default_rng(number)
    if shape[-1] == "int":
        array = generator.integers(0, M, shape[:-1]).astype(np.int32)
    else:
        # Small, so that layers do not make rounding larger.
        array = generator.standard_normal(shape, np.float32) / 4
    return jax.device_put(array, NamedSharding(MESH, PartitionSpec(*spec[: array.ndim])))


def compiled(case: Case, arguments: Any, *, changed: bool) -> tuple[Any, str]:
    """A case's program, and its text as XLA gets it."""

    def program(*given: Any) -> Any:  # another one each time: JAX keeps what it has compiled
        return case.compute(*given)

    lowered = jax.jit(program).lower(*arguments)
    module: Any = lowered.compiler_ir("stablehlo")
    if changed:
        unflatten(module, 8)
        assert module.operation.verify()
    return lowered.compile(), str(module)


def has_dim(n: int, text: str) -> bool:
    """Whether a value of the program has such a dim; not one of a function that nobody calls any more."""
    first, *functions = re.split(r"func\.func private @(?=\w+\()", text)
    read = [f for f in functions if f"call @{f.partition('(')[0]}(" in text]
    return any(re.search(rf"tensor<(\d+x)*{n}x", part) for part in (first, *read))


@pytest.mark.parametrize("name", CASES)
def test_program_gives_the_same_numbers(name: str) -> None:
    case = CASES[name]
    arguments = [made(shape, spec, i) for i, (shape, spec) in enumerate(case.arguments)]
    as_written, before = compiled(case, arguments, changed=False)

    changed, after = compiled(case, arguments, changed=True)

    assert has_dim(case.flat, before)
    assert has_dim(case.flat, after) == case.stays
    both = [jax.tree.leaves(program(*arguments)) for program in (changed, as_written)]
    for found, expected in zip(*both, strict=True):
        assert found.dtype == expected.dtype
        tolerance = 2e-2 if found.dtype == jnp.bfloat16 else 2e-5
        of_both = [np.asarray(t, np.float32) for t in (found, expected)]
        np.testing.assert_allclose(*of_both, rtol=tolerance, atol=tolerance)


def test_program_that_flattens_nothing_is_left_as_it_is() -> None:
    lowered = jax.jit(lambda x, w: (x @ w).reshape(B, S, 2, 5)).lower(
        *[made(shape, spec, 0) for shape, spec in (of_x, of_w)]
    )
    module: Any = lowered.compiler_ir("stablehlo")
    before = str(module)

    unflatten(module, 8)

    assert str(module) == before


@pytest.mark.parametrize("name", ["free dim of the left operand", "summed dim", "bias", "an MLP"])
def test_chips_gather_no_sequence(name: str) -> None:
    case = CASES[name]
    arguments = [made(shape, spec, i) for i, (shape, spec) in enumerate(case.arguments)]

    as_written, changed = (
        compiled(case, arguments, changed=changed)[0].as_text() for changed in (False, True)
    )

    assert "all-gather(" in as_written
    assert "all-gather(" not in changed


@pytest.mark.slow("rows")
@pytest.mark.parametrize(("rolled", "n_layers"), [(False, 2), (True, 4), (False, 4)])
def test_chips_along_the_sequence_share_the_work_of_a_training_step(
    rolled: bool, n_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rolled:
        monkeypatch.setattr(config, "roll_layers", "on")

    trained(WAYS["data 2, sequence 2, tensor 2"], n_steps=2, n_layers=n_layers)

    step = program_reports()[-1]
    gathers = [c for c in step.collectives if c.kind == "all-gather"]
    assert step.replicated_along["sequence"] < 0.05
    # Keys and values of each block, and their gradients' partners, and four times the tokens.
    assert sum(c.runs for c in gathers) <= 4 * n_layers + 4
