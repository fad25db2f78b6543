"""Meshes of other packages, some axes of a mesh, and meshes over slices are taken for what they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from torch_pjrt.extend import client
from torch_pjrt_spmd import (
    DeviceLoader,
    Mesh,
    SubMesh,
    as_mesh,
    current_mesh,
    distribute_tensor,
    init_device_mesh,
    mark_sharding,
    partitioner,
    redistribute,
    sharding_of,
    use_mesh,
)
from torch_pjrt_spmd.hybrid import hybrid_order

NAMES = ("data", "model")


def pytorchs(mesh: Mesh) -> DeviceMesh:
    """A `DeviceMesh` of PyTorch's own class, which needs no process group as long as it is not sliced."""
    ranks = torch.tensor(mesh.order).reshape(mesh.shape)
    names = mesh.axis_names
    return DeviceMesh("pjrt", ranks, mesh_dim_names=names, _init_backend=False, _rank=0)


#   name              the same mesh, of another class
KINDS: dict[str, Callable[[Mesh], Any]] = {
    "ours":             lambda mesh: mesh,
    "our DeviceMesh":   Mesh.to_device_mesh,
    "their DeviceMesh": pytorchs,
    "a copied one":     lambda mesh: copy.deepcopy(mesh.to_device_mesh()),
    "a pickled one":    lambda mesh: pickle.loads(pickle.dumps(mesh.to_device_mesh())),
    "JAX's":            lambda mesh: mesh.jax_mesh,
}  # fmt: skip


@pytest.mark.parametrize("chips", [None, (5, 4, 7, 6, 1, 0, 3, 2)], ids=["usual", "turned"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_takes_every_kind_of_mesh(kind: str, chips: Any) -> None:
    mesh = Mesh((2, 4), NAMES, chips)
    other = KINDS[kind](mesh)
    host = torch.arange(128.0).reshape(16, 8)

    assert as_mesh(other) == mesh
    with use_mesh(other):
        assert current_mesh() == mesh
    (batch,) = DeviceLoader([host], other, NAMES)
    for x in (
        batch,
        mark_sharding(host.to("pjrt"), other, NAMES),
        distribute_tensor(host, other, NAMES),
        redistribute(distribute_tensor(host, other, ("model",)), other, NAMES),
    ):
        found = sharding_of(x)
        assert found is not None
        assert (found.mesh, found.spec) == (mesh, NAMES)
        assert torch.equal(x.cpu(), host)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("their DeviceMesh", "JAX's")])
def test_some_axes_are_those_of_the_mesh(kind: str) -> None:
    mesh = Mesh((2, 2, 2), ("data", "expert", "model"))
    other = KINDS[kind](mesh)

    for names in ("model", ("data",), ("data", "model"), ("data", "expert", "model")):
        whole = names if isinstance(names, tuple) else (names,)
        found = as_mesh(other[names])
        assert found == (mesh if len(whole) == 3 else SubMesh(mesh, whole))
        assert found.root == mesh
        assert found.shape == (2,) * len(whole)
        assert found.size == 2 ** len(whole)


def test_a_device_mesh_has_the_sizes_and_names_of_pytorchs() -> None:
    mesh = init_device_mesh("pjrt", (2, 4), mesh_dim_names=NAMES)
    theirs = pytorchs(Mesh((2, 4), NAMES))

    assert isinstance(mesh, DeviceMesh)
    assert mesh == theirs
    for attribute in ("shape", "ndim", "mesh_dim_names", "device_type"):
        assert getattr(mesh, attribute) == getattr(theirs, attribute)
    assert mesh.size() == theirs.size() == 8
    assert (mesh["model"].size(), mesh.size(0), mesh["data", "model"]) == (4, 2, mesh)
    assert mesh["model"].mesh.tolist() == [0, 1, 2, 3]
    assert mesh["data"].mesh.tolist() == [0, 4]
    assert as_mesh(init_device_mesh("pjrt", (8,))).axis_names == ("dim_0",)
    assert mesh.get_rank() == 0
    with pytest.raises(KeyError, match="'rows'"):
        mesh["rows"]
    for call in (mesh.get_group, mesh.get_all_groups, mesh["data"].get_local_rank):
        with pytest.raises(NotImplementedError, match="one process has not"):
            call()


#   ici, dcn, and the chips of the first row, of slices of consecutive chips
HYBRID = [
    ((1, 4), (2, 1), [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ((4, 1), (1, 2), [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ((2, 2), (2, 1), [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ((2, 2), (1, 2), [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ((1, 2), (2, 2), [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ((2, 1), (2, 2), [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ((2, 2), (1, 1), [[0, 1], [2, 3]]),
    ((8,), (1,), [0, 1, 2, 3, 4, 5, 6, 7]),
]


@pytest.mark.parametrize(("ici", "dcn", "chips"), HYBRID, ids=str)
def test_chips_of_a_slice_are_beside_each_other(ici: Any, dcn: Any, chips: Any) -> None:
    names = NAMES[: len(ici)]

    mesh = Mesh.hybrid(ici, dcn, names)

    assert torch.tensor(mesh.order).reshape(mesh.shape).tolist() == chips
    assert mesh.shape == tuple(torch.tensor(chips).shape)
    whole = torch.arange(float(mesh.size)).to("pjrt")
    assert torch.equal(mark_sharding(whole, mesh, (names,)).cpu(), torch.arange(float(mesh.size)))


@pytest.mark.parametrize("kind", ["slice_index", "process_index"])
def test_slices_are_those_of_the_hardware(kind: str) -> None:
    chips = [
        SimpleNamespace(id=i, platform="cpu", device_kind="cpu", **{kind: slice_})
        for i, slice_ in enumerate([1, 0, 1, 0, 0, 1, 0, 1])
    ]

    assert hybrid_order(chips, (1, 4), (2, 1)) == (1, 3, 4, 6, 0, 2, 5, 7)
    with pytest.raises(ValueError, match="expected: slices with 4, 4 chips"):
        hybrid_order(chips, (1, 2), (4, 1))
    with pytest.raises(ValueError, match="expected: slices with 4, 4 chips"):
        hybrid_order(chips, (1, 2), (2, 1))


def test_slices_that_are_one_are_not_looked_for() -> None:
    chips = [
        SimpleNamespace(id=i, platform="cpu", device_kind="cpu", process_index=i // 4)
        for i in range(8)
    ]

    assert hybrid_order(chips, (2, 4), (1, 1)) == tuple(range(8))


def mesh() -> Mesh:
    return Mesh((2, 4), NAMES)


#   what is wrong       raises        and says
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an axis that is not":    (lambda: mesh()["rows"], ValueError, "some of ..data., .model.."),
    "axes in another order":  (lambda: mesh()["model", "data"], ValueError, "in this order"),
    "an axis twice":          (lambda: mesh()["data", "data"], ValueError, "in this order"),
    "the size of another":    (lambda: mesh()["data"].axis_size("model"), KeyError, "model"),
    "no mesh":                (lambda: as_mesh(3), TypeError, "PyTorch's DeviceMesh .* saw 3"),  # type: ignore[arg-type]
    "a shape as a mesh":      (lambda: use_mesh((2, 4)), TypeError, r"saw \(2, 4\)"),  # type: ignore[arg-type]
    "another device":         (lambda: init_device_mesh("cuda", (8,)), ValueError, "saw: 'cuda'"),
    "too many chips":         (lambda: init_device_mesh("pjrt", (3, 4)), ValueError, "12 chips"),
    "shapes of two lengths":  (lambda: Mesh.hybrid((4,), (2, 1), NAMES), ValueError, "1 or more"),
    "no slice":               (lambda: Mesh.hybrid((4,), (0,), ("data",)), ValueError, "1 or more"),
    "too many slices":        (lambda: Mesh.hybrid((4,), (3,), ("data",)), ValueError, "needs 12"),
    "a slice too big":        (lambda: Mesh.hybrid((16,), (1,), ("data",)), ValueError, "needs 16"),
    "a name too few":         (lambda: Mesh.hybrid((2, 2), (2, 1), ("data",)), ValueError, "a name"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_meshes_raise(case: str) -> None:
    call, kind, says = WRONG[case]
    with pytest.raises(kind, match=says):
        call()


def test_marks_on_some_axes_leave_the_others() -> None:
    both = mesh()
    host = torch.arange(128.0).reshape(16, 8)
    #   marks, one after another                               how it lies then
    for marks, expected in (
        ([("data", ("data",)), ("model", (None, "model"))], ("data", "model")),
        ([("data", ("data",)), ("model", ("model",))], (NAMES, None)),
        ([("model", ("model",)), ("data", ("data",))], (NAMES, None)),
        ([(NAMES, (("model", "data"),)), ("data", ())], ("model", None)),
        ([(NAMES, (("model", "data"),)), ("data", (None, "data"))], ("model", "data")),
        ([(NAMES, ("data", "model")), ("model", ())], ("data", None)),
    ):
        for start in (host.to("pjrt"), host.to("pjrt") * 1):
            x = start
            for axes, entries in marks:
                x = mark_sharding(x, both[axes], entries)
            found = sharding_of(x)
            assert found is not None
            assert (found.mesh, found.spec) == (both, expected)
            assert torch.equal(x.cpu(), host)
    with pytest.raises(ValueError, match="which 8 chips do not divide"):
        mark_sharding(distribute_tensor(torch.ones(4), both, ("model",)), both["data"], ("data",))
    with pytest.raises(ValueError, match="has no axis 'data'"):
        mark_sharding(host.to("pjrt"), both["model"], ("data",))


def test_activations_marked_on_an_axis_stay_in_parts_along_the_others() -> None:
    both = mesh()
    x = distribute_tensor(torch.arange(128.0).reshape(16, 8), both, ("data",))
    w = torch.ones(8, 8, device="pjrt", requires_grad=True)

    for entries, expected in (((), ("data", None)), ((None, "model"), ("data", "model"))):
        y = mark_sharding(x @ w, both["model"], entries)
        found = sharding_of(y.detach())
        assert found is not None
        assert found.spec == expected
        assert redistribute(x * 2, both["model"], entries).sum().item() == 128 * 127


@pytest.mark.parametrize(
    ("kind", "axes"),
    [("ours", NAMES), ("ours", "model"), ("our DeviceMesh", "model"), ("JAX's", None)],
)
def test_compiled_functions_take_our_meshes_and_with_a_break_others(kind: str, axes: Any) -> None:
    torch.compiler.reset()
    other = KINDS[kind](mesh())
    other = other if axes is None else other[axes]
    run = torch.compile(
        lambda x: mark_sharding(x * 2, other, ("model",)), backend="pjrt", fullgraph=kind == "ours"
    )

    found = sharding_of(run(torch.ones(8, 8).to("pjrt")))

    assert found is not None
    assert found.spec == ("model", None)


def test_a_mesh_has_core_ask_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(partitioner, "take_over", lambda: asked.append(True))

    mesh()

    assert asked


def test_virtual_chips_are_one_slice() -> None:
    assert len({chip.process_index for chip in client().chips}) == 1
