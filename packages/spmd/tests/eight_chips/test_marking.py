"""Marks: what they do to tensors, what they refuse, and that values never change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt_spmd import (
    DeviceLoader,
    Mesh,
    ShardingError,
    clear_sharding,
    current_mesh,
    distribute_tensor,
    local_shards,
    mark_sharding,
    shard_as,
    sharding_of,
    use_mesh,
    visualize_sharding,
)


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((2, 4), ("data", "model"))


def spec(x: torch.Tensor) -> tuple[Any, ...] | None:
    found = sharding_of(x)
    return found and found.spec


#   spec                                shape of a shard
SPECS: dict[tuple[Any, ...], tuple[int, ...]] = {
    (): (16, 8),
    ("data",): (8, 8),
    (None, "model"): (16, 2),
    ("data", "model"): (8, 2),
    (("data", "model"),): (2, 8),
    (("model", "data"), None): (2, 8),
    (("model",), ("data",)): (4, 4),
}


@pytest.mark.parametrize("is_pending", [False, True], ids=["there", "pending"])
@pytest.mark.parametrize("entries", SPECS, ids=str)
def test_a_marked_tensor_has_its_values_in_shards(
    mesh: Mesh, entries: tuple[Any, ...], is_pending: bool
) -> None:
    expected = torch.arange(128.0).reshape(16, 8)
    x = expected.to("pjrt")
    if is_pending:
        x, expected = x * 2, expected * 2

    assert mark_sharding(x, mesh, entries) is x

    shards = local_shards(x)
    assert [s.device for s in shards] == list(range(8))
    for shard in shards:
        assert shard.data.shape == SPECS[entries]
        assert torch.equal(shard.data, expected[shard.index])
    assert torch.equal(x.cpu(), expected)
    assert str(x.sum().item()) == str(expected.sum().item())


@pytest.mark.parametrize(
    ("shape", "entries", "says"),
    [
        ((16, 8), ("rows",), "no axis 'rows'"),
        ((16, 8), ("data", None, None), "3 entries, the tensor 2 dims"),
        ((16, 8), ("data", "data"), "used twice"),
        ((16, 8), (("data", "model", "data"),), "used twice"),
        ((16, 6), (None, "model"), "Dim 1 has 6 elements, which 4 chips do not divide"),
        ((4, 8), (("data", "model"),), "which 8 chips do not divide"),
        ((16,), "data", "not a text"),
        ((), ("data",), "1 entries, the tensor 0 dims"),
    ],
)
def test_a_wrong_spec_raises_at_the_call_and_changes_nothing(
    mesh: Mesh, shape: tuple[int, ...], entries: Any, says: str
) -> None:
    x = torch.ones(shape, device="pjrt")
    for call in (mark_sharding, lambda x, *rest: distribute_tensor(x.cpu(), *rest)):
        with pytest.raises(ShardingError, match=says) as raised:
            call(x, mesh, entries)
        assert f"{list(shape)}" in str(raised.value)
        assert "data 2, model 4" in str(raised.value)
    assert sharding_of(x) is None


def test_an_indivisible_dim_is_told_the_axes_that_fit(mesh: Mesh) -> None:
    with pytest.raises(ShardingError, match="expected: one of 'data'"):
        mark_sharding(torch.ones(6, device="pjrt"), mesh, ("model",))
    with pytest.raises(ShardingError, match="expected: None"):
        mark_sharding(torch.ones(6, 8, device="pjrt"), mesh, ("model", "data"))  # which "data" fits
    three = Mesh((2, 2, 2), ("a", "b", "c"))
    with pytest.raises(ShardingError, match=r"expected: one of 'a', 'b', 'c', \('a', 'b'\)"):
        mark_sharding(torch.ones(4, 2, device="pjrt"), three, (("a", "b", "c"), ()))
    with pytest.raises(ShardingError, match="expected: None"):
        mark_sharding(torch.ones(3, device="pjrt"), mesh, ("model",))


def test_what_is_no_tensor_of_the_device_is_refused(mesh: Mesh) -> None:
    for x in (torch.ones(8), 3, None):
        with pytest.raises(TypeError, match="tensor on the device"):
            mark_sharding(x, mesh, ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (((2, 4), ("data",)), "a name for each axis"),
        (((2, 4), ("data", "data")), "each another one"),
        (((3, 4), ("a", "b")), "needs 12 chips"),
        (((2,), ("a",), (0, 0)), "each another one"),
        (((2,), ("a",), (0, 8)), "not there"),
        (((2,), ("a",), (0, 1, 2)), "needs 2 chips"),
        (((0,), ("a",)), "needs 0 chips"),
    ],
)
def test_a_wrong_mesh_raises(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Mesh(*arguments)


def test_meshes_go_to_jax_and_back(mesh: Mesh) -> None:
    turned = Mesh((2, 2), ("a", "b"), (5, 4, 7, 6))
    for one in (mesh, turned):
        again = Mesh.from_jax(one.jax_mesh)
        assert again.jax_mesh == one.jax_mesh
        assert again.axis_names == one.axis_names
    x = mark_sharding(torch.arange(4.0, device="pjrt"), turned, (("a", "b"),))
    assert {s.device: s.data.item() for s in local_shards(x)} == {5: 0.0, 4: 1.0, 7: 2.0, 6: 3.0}


#   name                    writes in place to x (16, 8)
WRITES = {
    "add_":              lambda x: x.add_(1),
    "copy_":             lambda x: x.copy_(torch.ones(16, 8)),
    "a row":             lambda x: x[3].fill_(7),
    "a strided view":    lambda x: x[::2, 1:5].mul_(3),
    "out=":              lambda x: torch.exp(x, out=x),
    "index_put_":        lambda x: x.index_put_((torch.tensor([1, 2], device="pjrt"),), x[0] + 1),
    "zero_":             lambda x: x.zero_(),
    "normal_":           lambda x: x.normal_(),
    "masked_fill_":      lambda x: x.masked_fill_(x > 3, 0),
}  # fmt: skip


@pytest.mark.parametrize("is_held", [False, True], ids=["donated", "held"])
@pytest.mark.parametrize("name", WRITES)
def test_writes_in_place_keep_the_sharding(mesh: Mesh, name: str, is_held: bool) -> None:
    x = mark_sharding(torch.ones(16, 8, device="pjrt"), mesh, ("data", "model"))
    held = torch_pjrt.to_jax(x) if is_held else None

    WRITES[name](x)

    torch_pjrt.sync()
    assert spec(x) == ("data", "model")
    del held


def test_a_view_of_a_marked_tensor_is_one_of_its_content(mesh: Mesh) -> None:
    x = mark_sharding(torch.arange(128.0, device="pjrt").reshape(16, 8), mesh, ("data", "model"))

    assert torch.equal(x.t()[2:4].cpu(), torch.arange(128.0).reshape(16, 8).t()[2:4])
    part = mark_sharding(x[:8], mesh, (None, "model"))

    assert torch.equal(x.cpu(), torch.arange(128.0).reshape(16, 8))
    assert torch.equal(part.cpu(), torch.arange(64.0).reshape(8, 8))
    assert (spec(x), spec(part)) == (("data", "model"), (None, "model"))


@pytest.mark.parametrize("is_pending", [False, True], ids=["there", "pending"])
def test_a_part_is_marked_as_a_tensor_of_its_own_and_the_rest_stays(
    mesh: Mesh, is_pending: bool
) -> None:
    x = torch.arange(64.0).to("pjrt").reshape(8, 8) + 1
    if not is_pending:
        torch_pjrt.sync()

    part = mark_sharding(x[2:6], mesh, ("model", None))

    if not is_pending:  # else XLA decides
        assert sharding_of(x) is None
    assert spec(part) == ("model", None)
    assert torch.equal(part.cpu(), torch.arange(16.0, 48.0).reshape(4, 8) + 1)
    cleared = clear_sharding(part[:2])
    assert (spec(cleared), spec(part)) == ((None, None), ("model", None))


def test_a_parameter_that_is_a_part_of_another_tensor_is_refused(mesh: Mesh) -> None:
    flat = torch.zeros(8, 8, device="pjrt")

    with pytest.raises(ShardingError, match=r"a view of \[4, 8\] of a tensor of \[8, 8\]"):
        mark_sharding(torch.nn.Parameter(flat[:4]), mesh, ("model", None))

    assert sharding_of(flat) is None


@pytest.mark.parametrize("grad", [False, True])
def test_a_reshaped_or_transposed_tensor_is_spread_in_its_own_dims(mesh: Mesh, grad: bool) -> None:
    flat = torch.arange(128.0).to("pjrt").requires_grad_(grad)
    for look in (
        lambda x: x.reshape(16, 8),
        lambda x: x.reshape(8, 16).t(),
        lambda x: x.view(8, 16)[None].mT,
    ):
        expected = look(torch.arange(128.0))
        for x in (look(flat * 1), look(torch.arange(128.0).to("pjrt"))):
            entries = ("data", "model")[: x.dim()] if x.shape[0] > 1 else (None, "model")
            marked = mark_sharding(x, mesh, entries)

            assert marked is x
            assert spec(marked.detach()) == (*entries, *[None] * (x.dim() - len(entries)))
            assert torch.equal(marked.detach().cpu(), expected)
            shard = local_shards(marked.detach())[1]
            assert torch.equal(shard.data, expected[shard.index])


def test_marks_are_cleared_and_copied(mesh: Mesh) -> None:
    x = mark_sharding(torch.ones(16, 8, device="pjrt"), mesh, ("data", "model"))
    y = shard_as(torch.zeros(32, 4, device="pjrt"), x)
    assert spec(y) == ("data", "model")

    assert clear_sharding(x) is x

    assert spec(x) == (None, None)
    x.add_(1)
    assert spec(x) == (None, None)
    with pytest.raises(ShardingError, match="on one chip"):
        shard_as(x, torch.ones(2, device="pjrt"))


def test_a_mesh_in_use_holds_what_nobody_marks(mesh: Mesh) -> None:
    with use_mesh(mesh):
        assert current_mesh() == mesh
        assert spec(torch.ones(3).to("pjrt")) == (None,)
        assert spec(torch.zeros(3, device="pjrt")) == (None,)
        with use_mesh(None):
            assert spec(torch.ones(3).to("pjrt")) is None
    assert current_mesh() is None
    assert spec(torch.ones(3).to("pjrt")) is None


def test_tensors_of_one_chip_come_to_those_on_the_mesh(mesh: Mesh) -> None:
    alone = torch.arange(8.0).to("pjrt")
    x = mark_sharding(torch.ones(16, 8, device="pjrt"), mesh, ("data", None))

    assert torch.equal((x + alone).cpu(), torch.ones(16, 8) + torch.arange(8.0))
    assert spec(alone) == (None,)


def test_tensors_on_other_chips_are_refused_and_stay(mesh: Mesh) -> None:
    x = mark_sharding(torch.ones(4, device="pjrt"), Mesh((2,), ("a",), (0, 1)), ("a",))
    torch_pjrt.sync()
    y = mark_sharding(torch.ones(4, device="pjrt"), Mesh((2,), ("a",), (2, 3)), ("a",))
    torch_pjrt.sync()

    with pytest.raises(ShardingError, match="different chips"):
        (x + y).cpu()

    assert torch.equal(x.cpu(), y.cpu())
    assert torch.equal(
        (x + mark_sharding(y, Mesh((2,), ("b",), (0, 1)), ("b",))).cpu(), x.cpu() * 2
    )


def test_random_numbers_are_those_of_one_chip(mesh: Mesh) -> None:
    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(3)
        x = torch.randn(16, 8, device="pjrt")
        y = torch.rand(16, 8, device="pjrt")
        layer = nn.Linear(8, 16, device="pjrt")
        return [x, y, layer.weight.detach(), torch.randperm(64, device="pjrt")]

    expected = [t.cpu() for t in drawn()]

    for use, entries in ((None, ("data", "model")), (mesh, ("data",)), (mesh, None)):
        with use_mesh(use):
            found = drawn()
            if entries is not None:
                for t in found[:3]:
                    mark_sharding(t, mesh, entries)
            for ours, theirs in zip(found, expected, strict=True):
                assert torch.equal(ours.cpu(), theirs)


def test_what_is_made_and_marked_before_a_sync_is_never_whole_on_a_chip(mesh: Mesh) -> None:
    n = 1 << 20

    x = mark_sharding(torch.randn(8, n, device="pjrt"), mesh, (("data", "model"),))
    torch_pjrt.sync()

    sizes = [s.data.nbytes for s in local_shards(x)]
    assert sizes == [4 * n] * 8


def test_gradients_pass_through_marks_of_activations(mesh: Mesh) -> None:
    w = torch.randn(8, 8)
    x = torch.randn(16, 8)

    def loss(w: torch.Tensor, x: torch.Tensor, marks: bool) -> torch.Tensor:
        y = x @ w
        if marks:
            y = mark_sharding(y, mesh, ("data", "model"))
            y = y + 0 * mark_sharding(y.t(), mesh, ("model",)).t()
        return y.tanh().square().sum()

    theirs = w.clone().requires_grad_()
    loss(theirs, x, False).backward()
    for compiled in (False, True):
        ours = w.to("pjrt").requires_grad_()
        function = torch.compile(loss, backend="pjrt", fullgraph=True) if compiled else loss
        function(ours, x.to("pjrt"), True).backward()
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-5, atol=1e-5)


def test_placements_of_dtensor_are_taken(mesh: Mesh) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    x = torch.arange(128.0).reshape(16, 8)
    for placements, expected in (
        ((Shard(0), Shard(1)), ("data", "model")),
        ((Shard(1), Replicate()), (None, "data")),
        ((Shard(0), Shard(0)), (("data", "model"), None)),
        ((Replicate(), Shard(-1)), (None, "model")),
    ):
        y = distribute_tensor(x, mesh, placements)
        assert spec(y) == expected
        assert torch.equal(y.cpu(), x)
    for wrong in ((Partial(), Replicate()), (Shard(0),), (Shard(2), Replicate())):
        with pytest.raises(ShardingError):
            distribute_tensor(x, mesh, wrong)


def test_batches_of_a_loader_come_in_parts(mesh: Mesh) -> None:
    batches = [{"x": torch.full((8, 4), float(i)), "y": torch.tensor([i] * 8)} for i in range(3)]

    for i, batch in enumerate(DeviceLoader(batches, mesh, ("data", "model"))):
        assert spec(batch["x"]) == ("data", "model")
        assert spec(batch["y"]) == ("data",)
        assert batch["x"].sum().item() == 32 * i
        assert batch["y"].sum().item() == 8 * i
    with pytest.raises(ShardingError, match="which 2 chips do not divide"):
        list(DeviceLoader([torch.ones(8, 4), torch.ones(3, 4)], mesh, ("data",)))


def test_sharded_tensors_are_saved_loaded_printed_and_drawn(
    mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = mark_sharding(torch.arange(16.0, device="pjrt").reshape(8, 2), mesh, ("data", None))

    torch.save({"x": x}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt")["x"]

    assert torch.equal(loaded.cpu(), torch.arange(16.0).reshape(8, 2))
    assert "[14., 15.]" in repr(x)
    visualize_sharding(x)
    assert "CPU" in capsys.readouterr().out
    with pytest.raises(ShardingError, match="one or two dims"):
        visualize_sharding(torch.ones(2, 2, 2, device="pjrt"))


def test_another_sharding_of_an_input_recompiles_and_says_so(mesh: Mesh) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * 3 + 1).sum()

    for entries in (("data", None), (None, "model")):
        x = mark_sharding(torch.ones(16, 8, device="pjrt"), mesh, entries)
        torch_pjrt.sync()
        step(x).item()

    found = torch_pjrt.report().as_dict()["recompilations"][-1]
    assert found["kind"] == "sharding"
    assert "float32[16, 8], lies as `P(None, 'model')`" in found["what"]
    assert "it lay as `P('data',)` on the mesh (data 2, model 4)" in found["what"]


def test_a_captured_step_takes_batches_that_lie_otherwise(mesh: Mesh) -> None:
    w = mark_sharding(torch.ones(8, 8, device="pjrt"), mesh, (None, "model"))
    step = torch_pjrt.capture(lambda x: (x @ w).sum(1))
    batch = torch.arange(128.0).reshape(16, 8)

    results = []
    for i in range(6):
        x = batch.to("pjrt") if i > 3 else distribute_tensor(batch, mesh, ("data",))
        results.append(step(x).cpu())

    assert step.replays > 2
    assert all(torch.equal(r, batch.sum(1) * 8) for r in results)
