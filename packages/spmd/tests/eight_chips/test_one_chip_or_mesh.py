"""Everything that works on one chip works on a mesh: a program gives the same, however its inputs lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, Put, host, whole_numbers

import torch_pjrt
from torch_pjrt_spmd import Mesh, distribute_tensor, mark_sharding, sharding_of

Spec = tuple[Any, ...]
SPECS: tuple[Spec, ...] = (("data", "model"), (("data", "model"),))
# How far results may differ that halves are rounded for, or that many steps are between; others 2e-5.
ROUNDED = {"scaled gradients": 2e-3, "trained by LBFGS": 1e-3}
MANY = {"data": 2, "model": 4, ("data", "model"): 8}


def on_one_chip(x: torch.Tensor) -> torch.Tensor:
    return x.to("pjrt")


def on_mesh(spec: Spec) -> Put:
    """What brings a tensor to the mesh, spread along the dims that chips divide."""
    mesh = Mesh((2, 4), ("data", "model"))

    def put(x: torch.Tensor) -> torch.Tensor:
        entries = [
            e if e and n % MANY[e] == 0 else None for n, e in zip(x.shape, spec, strict=False)
        ]
        return mark_sharding(x.to("pjrt"), mesh, entries)

    return put


def given(name: str, put: Put) -> Any:
    torch.manual_seed(0)
    found = CASES[name](put)
    torch_pjrt.sync()
    return found


def differences(found: Any, expected: Any, within: float, where: str = "result") -> Iterator[str]:
    """Where two results differ; floats may by the order of sums."""
    if isinstance(expected, (list, tuple, dict)):
        assert len(found) == len(expected)
        keys = expected.keys() if isinstance(expected, dict) else range(len(expected))
        for key in keys:
            yield from differences(found[key], expected[key], within, f"{where}[{key!r}]")
    elif isinstance(expected, (torch.Tensor, np.ndarray, float)):
        pair = [_on_cpu(x) for x in (found, expected)]
        if pair[0].dtype != pair[1].dtype or pair[0].shape != pair[1].shape:
            yield f"{where}: {pair[0].dtype} {pair[0].shape}, not {pair[1].dtype} {pair[1].shape}"
        elif not torch.allclose(*pair, rtol=within, atol=within, equal_nan=True):
            yield f"{where}: {pair[0]}, not {pair[1]}"
    elif found != expected:
        yield f"{where}: {found!r}, not {expected!r}"


def _on_cpu(x: Any) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        return torch.tensor(x)
    return (x.detach().coalesce().to_dense() if x.is_sparse else x.detach()).cpu()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")  # a sparse tensor's operator
@pytest.mark.parametrize("name", CASES)
def test_programs_give_what_they_give_on_one_chip(name: str) -> None:
    expected = given(name, on_one_chip)
    for spec in SPECS:
        found = given(name, on_mesh(spec))
        assert not list(differences(found, expected, ROUNDED.get(name, 2e-5))), spec


# --- what XLA's partitioner gets wrong if it is let


def sums_at(x: torch.Tensor, i: torch.Tensor) -> Any:
    """Of indices that chips do not divide, into element 0 of which nothing is to come."""
    zeros = torch.zeros(64, device="pjrt")
    rows = torch.zeros(64, 8, device="pjrt")
    parts = [i[:n] for n in (1, 9)]
    return [
        [zeros.index_add(0, j, torch.ones_like(j, dtype=torch.float32)) for j in parts],
        [zeros.index_put((j,), zeros[0] + 1, accumulate=True) for j in parts],
        [zeros.scatter_reduce(0, j, zeros[: len(j)] + 3, "amax") for j in parts],
        [rows.index_add(0, j, torch.ones(len(j), 8, device="pjrt")) for j in parts],
        [rows.index_add(0, j, (x * 2 + 1)[: len(j)]) for j in parts],
        [j.bincount(minlength=20) for j in parts],
        [torch.repeat_interleave(j) for j in parts],
    ]


def gradients_at(x: torch.Tensor, i: torch.Tensor) -> Any:
    weight = x.clone().requires_grad_()
    grid = i.view(2, 8)
    y = torch.nn.functional.embedding(grid[:, :-1], weight) + weight[i[:3]].sum()
    return torch.autograd.grad(y.sum(), weight)


def windows(x: torch.Tensor, i: torch.Tensor) -> Any:
    """Over one array, with other values around it."""
    image = x[None, None]
    kernel = torch.ones(1, 1, 3, 3, device="pjrt")
    return [
        [f(x, d) for d in (0, 1) for f in (torch.cumsum, torch.cummax)],
        x.logcumsumexp(0),
        torch.nn.functional.max_pool2d(image, 3, 1, 1),
        torch.nn.functional.avg_pool2d(image, 3, 1, 1),
        torch.nn.functional.conv2d(image, kernel, padding=1),
    ]


@pytest.mark.parametrize("call", [sums_at, gradients_at, windows])
@pytest.mark.parametrize("spec", [("data", "model"), ("model",)], ids=str)
def test_what_the_partitioner_would_get_wrong_is_right(
    call: Callable[..., Any], spec: Spec
) -> None:
    x, i = host(16, 8), whole_numbers(16, below=15) + 1
    expected = call(x.to("pjrt"), i.to("pjrt"))

    found = call(on_mesh(spec)(x), on_mesh(spec)(i))

    assert not list(differences(found, expected, 2e-5))


# --- at the borders


def test_arrays_of_jax_come_and_go_as_they_lie() -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    x = distribute_tensor(host(16, 8), mesh, ("data", "model"))
    array = torch_pjrt.to_jax(x)

    y = torch_pjrt.from_jax(array * 2)

    found = sharding_of(y)
    assert found is not None
    assert found.spec == ("data", "model")
    assert torch.equal((y @ y.t()).cpu(), (x * 2 @ (x * 2).t()).cpu())
    y.add_(1)
    assert torch.equal(torch.from_numpy(np.array(array)), host(16, 8))


def test_dlpack_takes_what_is_whole_on_a_chip_and_refuses_the_rest() -> None:
    mesh = Mesh((2, 4), ("data", "model"))

    assert torch.equal(torch.from_dlpack(distribute_tensor(host(16, 8), mesh, ())), host(16, 8))
    with pytest.raises(BufferError, match=r"spread over 8 chips: use tensor.cpu\(\)"):
        torch.from_dlpack(distribute_tensor(host(16, 8), mesh, ("data", None)))


def test_programs_are_shown_and_looked_at_on_a_mesh() -> None:
    x = on_mesh(SPECS[0])(host(16, 8))

    assert "mhlo.num_partitions = 8" in torch_pjrt.to_stablehlo(
        x @ x.t() + torch.ones(16).to("pjrt")
    )
    with pytest.raises(torch_pjrt.errors.NonFiniteValue, match="log"), torch_pjrt.check_nans():
        (x - 10).log().sum().item()


def test_a_compiled_function_that_gets_another_sharding_says_so() -> None:
    f = torch.compile(lambda x: (x * 3).sum(), backend="pjrt")
    x = host(16, 8)
    for spec in (SPECS[0], (None, "model")):
        torch.testing.assert_close(f(on_mesh(spec)(x)).cpu(), (x * 3).sum())

    found = torch_pjrt.report().as_dict()["recompilations"][-1]

    assert found["kind"] == "sharding"
    assert "lies as `P(None, 'model')`" in found["what"]
