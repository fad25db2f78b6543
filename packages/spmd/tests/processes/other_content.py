"""A process that shares a mesh with another, and uploads other things; prints what each case gave."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

import torch_pjrt
import torch_pjrt_spmd as spmd
from torch_pjrt_spmd import distributed

distributed.initialize()
RANK = distributed.process_index()
mesh = spmd.Mesh((2, 2), ("hosts", "chips"))
x = spmd.distribute_tensor(torch.arange(8.0), mesh, (("hosts", "chips"),))


def the_same_weights() -> float:
    return (x + spmd.distribute_tensor(torch.ones(8), mesh, ())).sum().item()


def own_weights() -> float:
    spmd.distribute_tensor(torch.full((4,), 2.0), mesh, ())
    return (x + spmd.distribute_tensor(torch.full((8,), float(RANK)), mesh, ())).sum().item()


def own_weights_in_parts_that_both_have() -> float:
    w = spmd.distribute_tensor(torch.full((8,), float(RANK)), mesh, ("chips",))
    return (x + w).sum().item()


def own_tensors_of_one_chip() -> float:
    return (x + torch.full((8,), float(RANK)).to("pjrt")).sum().item()


def own_tensors_with_a_mesh_in_use() -> float:
    with spmd.use_mesh(mesh):
        return (x + torch.full((8,), float(RANK)).to("pjrt")).sum().item()


def own_rows() -> float:
    """Each has its half from one process."""
    rows = torch.full((8,), float(RANK))
    return (x + spmd.distribute_tensor(rows, mesh, ("hosts",))).sum().item()


def a_number_within_an_operator() -> float:
    return x.reshape(2, 4).sum(RANK).sum().item()


def read_twice() -> list[str]:
    """Nothing is lost, and nothing is read: another operator is recorded by each, and stays so."""
    y = x.exp() if RANK else x.abs()
    z = x + 1
    said = []
    for tensor in (y, y, z):
        try:
            said.append(str(tensor.sum().item()))
        except RuntimeError as error:
            said.append(type(error).__name__)
    return said


def after_letting_go() -> float:
    """What was recorded has no more readers, and goes with the next sync."""
    torch_pjrt.sync()
    return (x + 1).sum().item()


def not_compared() -> float:
    spmd.config.compare_uploads = False
    try:
        return (x + spmd.distribute_tensor(torch.full((8,), float(RANK)), mesh, ())).numel()
    finally:
        spmd.config.compare_uploads = True


CASES: list[Callable[[], Any]] = [
    the_same_weights, own_weights, own_weights_in_parts_that_both_have, own_tensors_of_one_chip,
    own_tensors_with_a_mesh_in_use, own_rows, not_compared, the_same_weights,
    a_number_within_an_operator, after_letting_go, read_twice, after_letting_go,
]  # fmt: skip

for case in CASES:
    try:
        said = str(case())
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([case.__name__, said]), flush=True)
