"""Sparse tensors on the device do what they do on the CPU, in each layout."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sides import assert_same, saved
from torch_pjrt.observe.counters import counters
from torch_pjrt.tensor.sparse import operators

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*invariant checks are implicitly disabled:UserWarning"),
]

INDICES = torch.tensor([[0, 2, 2, 1], [1, 0, 0, 3]])  # one of them twice
DENSE = torch.tensor([[0.0, 0.5, 0, 0], [0, 0, 0, -0.25], [0.75, 0, 0, 0]])


def coo(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.tensor([0.5, -0.25, 0.5, 0.125]).to(dtype)
    return torch.sparse_coo_tensor(INDICES.to(device), values.to(device), (3, 4))


def csr(device: str) -> torch.Tensor:
    return DENSE.to(device).to_sparse_csr()


def dense(device: str) -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4).to(device)


def written(x: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    result = write(x)
    assert result is x
    return x


def gradient(function: Callable[[torch.Tensor], torch.Tensor], device: str) -> torch.Tensor:
    x = DENSE.to(device, copy=True).requires_grad_()
    (function(x) * dense(device)).sum().backward()
    assert x.grad is not None
    return x.grad


CASES: dict[str, Callable[[str], Any]] = {
    "made": coo,
    "made without size": lambda d: torch.sparse_coo_tensor(INDICES.to(d), dense(d)[0]),
    "made with checks": lambda d: torch.sparse_coo_tensor(
        INDICES.to(d), dense(d)[0], (3, 4), check_invariants=True
    ),
    "made by torch.zeros": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d),
    "made compressed": lambda d: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], device=d), torch.tensor([1, 0], device=d), dense(d)[0, :2]
    ),
    "to_sparse": lambda d: DENSE.to(d).to_sparse(),
    "to_sparse of some dims": lambda d: DENSE.to(d).to_sparse(1),
    "to_sparse of one number": lambda d: torch.tensor(2.0, device=d).to_sparse(),
    "to_sparse of nothing": lambda d: torch.zeros(3, 0, device=d).to_sparse(),
    "to_sparse_csr": csr,
    "to_sparse_csr of integers": lambda d: DENSE.to(d).gt(0).long().to_sparse_csr(),
    "to_sparse_csr of a batch": lambda d: torch.eye(2, device=d).expand(3, 2, 2).to_sparse_csr(),
    "to_sparse_csc": lambda d: DENSE.to(d).to_sparse_csc(),
    "to_sparse_bsr": lambda d: DENSE.to(d).to_sparse_bsr((3, 2)),
    "to_sparse_bsc": lambda d: DENSE.to(d).to_sparse_bsc((1, 2)),
    "COO to CSR": lambda d: coo(d).to_sparse_csr(),
    "CSR to COO": lambda d: csr(d).to_sparse(),
    "CSR to CSC": lambda d: csr(d).to_sparse_csc(),
    "dense of COO": lambda d: coo(d).to_dense(),
    "dense of bools": lambda d: coo(d, torch.bool).to_dense(),
    "dense of some dims": lambda d: DENSE.to(d).to_sparse(1).to_dense(),
    "dense of one number": lambda d: torch.tensor(2.0, device=d).to_sparse().to_dense(),
    "dense of CSR": lambda d: csr(d).to_dense(),
    "dense of CSC": lambda d: DENSE.to(d).to_sparse_csc().to_dense(),
    "dense of BSR": lambda d: DENSE.to(d).to_sparse_bsr((3, 2)).to_dense(),
    "moved here": lambda d: coo("cpu").to(d),
    "moved here compressed": lambda d: csr("cpu").to(d),
    "moved back": lambda d: coo(d).cpu().to(d),
    "coalesced": lambda d: coo(d).coalesce(),
    "coalesced rows": lambda d: torch.sparse_coo_tensor(
        INDICES[1:].to(d), dense(d).repeat(2, 1)[:4], (4, 4)
    ).coalesce(),
    "coalesced, of one index": lambda d: torch.sparse_coo_tensor(
        INDICES[:, :1].to(d), dense(d)[0, :1], (3, 4)
    ).coalesce(),
    "its values": lambda d: coo(d).coalesce().values(),
    "its columns": lambda d: csr(d).col_indices(),
    "another dtype": lambda d: coo(d).to(torch.float64),
    "another dtype, compressed": lambda d: csr(d).half(),
    "clone": lambda d: coo(d).clone(),
    "clone of CSR": lambda d: csr(d).clone(),
    "detach": lambda d: coo(d).detach(),
    "deepcopy": lambda d: copy.deepcopy(coo(d)),
    "saved and loaded": lambda d: saved(coo(d)).to(d),
    "zeros_like": lambda d: torch.zeros_like(coo(d)),
    "transposed": lambda d: coo(d).t(),
    "joined": lambda d: torch.cat([coo(d), coo(d)]),
    "a row": lambda d: coo(d)[2],
    "a row of CSR": lambda d: csr(d)[2],
    "sum": lambda d: torch.sparse.sum(coo(d), 0),
    "softmax": lambda d: torch.sparse.softmax(coo(d), 1),
    "times a number": lambda d: coo(d) * 2,
    "times a number, in place": lambda d: written(coo(d), lambda x: x.mul_(2)),
    "CSR times a number, in place": lambda d: written(csr(d), lambda x: x.mul_(2)),
    "zeroed": lambda d: written(coo(d), lambda x: x.zero_()),
    "written": lambda d: written(csr(d), lambda x: x.copy_(csr(d).sin())),
    "plus itself, in place": lambda d: written(coo(d), lambda x: x.add_(coo(d))),
    "plus another": lambda d: coo(d) + DENSE.to(d).to_sparse(),
    "CSR plus another": lambda d: csr(d) + csr(d),
    "CSR plus another, in place": lambda d: written(
        csr(d), lambda x: x.add_(dense(d).to_sparse_csr())
    ),
    "added to a dense one": lambda d: dense(d) + coo(d),
    "added to a dense one, in place": lambda d: written(dense(d), lambda x: x.add_(coo(d))),
    "out=": lambda d: torch.add(coo(d), coo(d), out=torch.zeros(3, 4, device=d).to_sparse()),
    "COO @ dense": lambda d: coo(d) @ dense(d).t(),
    "COO @ vector": lambda d: coo(d) @ dense(d)[0],
    "COO @ COO": lambda d: torch.sparse.mm(coo(d), coo(d).t()),
    "CSR @ dense": lambda d: csr(d) @ dense(d).t(),
    "dense @ CSR": lambda d: dense(d).t() @ csr(d),
    "dense @ COO": lambda d: dense(d).t() @ coo(d),
    "CSC @ dense": lambda d: DENSE.to(d).to_sparse_csc() @ dense(d).t(),
    "CSR @ CSR": lambda d: csr(d) @ csr(d).t(),
    "addmm with CSR": lambda d: torch.addmm(dense(d)[:, :3], csr(d), dense(d).t(), beta=0),
    "sampled_addmm": lambda d: torch.sparse.sampled_addmm(
        csr(d), dense(d), dense(d).t() @ dense(d), beta=2, alpha=3
    ),
    "addmm": lambda d: torch.addmm(dense(d)[:, :3], coo(d), dense(d).t(), beta=2, alpha=3),
    "masked": lambda d: dense(d).sparse_mask(coo(d).coalesce()),
    "masked as CSR": lambda d: dense(d).sparse_mask(csr(d)),
    "gradient of to_sparse": lambda d: gradient(lambda x: x.to_sparse().to_dense(), d),
    "gradient of to_sparse_csr": lambda d: gradient(lambda x: x.to_sparse_csr().to_dense(), d),
    "gradient through values": lambda d: gradient(
        lambda x: (x.to_sparse().neg() * 3).to_dense(), d
    ),
    "masked, itself sparse": lambda d: dense(d).to_sparse().sparse_mask(coo(d)),
    "masked, fewer indices": lambda d: coo(d).coalesce().sparse_mask(dense(d).to_sparse()),
    "masked rows": lambda d: DENSE.to(d).to_sparse(1).sparse_mask(dense(d).to_sparse(1)),
    "gradient of made": lambda d: gradient(
        lambda x: torch.sparse_coo_tensor(INDICES.to(d), x[0], (3, 4)).to_dense(), d
    ),
    "gradient of made in mm": lambda d: gradient(
        lambda x: torch.sparse_coo_tensor(INDICES.to(d), x[0], (3, 4)) @ torch.eye(4, device=d), d
    ),
    "gradient of mm": lambda d: gradient(
        lambda x: torch.sparse.mm(x.to_sparse(), torch.eye(4, device=d)), d
    ),
    "gradient of mm by maxima": lambda d: gradient(
        lambda x: torch.sparse.mm(x.to_sparse_csr(), torch.eye(4, device=d), "amax"), d
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_does_what_it_does_on_the_cpu(name: str) -> None:
    assert_same(CASES[name]("pjrt"), CASES[name]("cpu"))


@pytest.mark.parametrize("make", [coo, csr])
@pytest.mark.parametrize("name", operators.EACH)
def test_operators_of_each_value_run_on_the_device(
    name: str, make: Callable[[str], torch.Tensor]
) -> None:
    ours, theirs = [x.coalesce() if make is coo else x for x in map(make, ("pjrt", "cpu"))]
    before = counters.fallbacks.total()

    assert_same(getattr(ours, name)(), getattr(theirs, name)())
    assert counters.fallbacks.total() == before


def test_it_prints_what_is_on_the_cpu_and_the_device() -> None:
    assert repr(coo("pjrt")).replace("device='pjrt:0', ", "") == repr(coo("cpu"))


def test_an_index_out_of_range_is_refused_where_that_is_checked() -> None:
    with pytest.raises(RuntimeError, match="size is 3 but found index 3"):
        torch.sparse_coo_tensor(INDICES.to("pjrt"), dense("pjrt")[0], (3, 3), check_invariants=True)


def test_values_are_shared_with_the_container() -> None:
    x = coo("pjrt").coalesce()
    x.values().zero_()

    assert x.to_dense().count_nonzero() == 0


def test_what_runs_on_the_cpu_is_counted() -> None:
    before = counters.fallbacks["aten._sparse_softmax.default"]
    torch.sparse.softmax(coo("pjrt"), 1)

    assert counters.fallbacks["aten._sparse_softmax.default"] == before + 1
