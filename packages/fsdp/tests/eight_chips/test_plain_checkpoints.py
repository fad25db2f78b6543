"""PyTorch's `torch.distributed.checkpoint` saves and loads what lies on a mesh, part by part."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
import torch.distributed.checkpoint.state_dict
from torch import nn

from torch_pjrt_spmd import Mesh, distribute_tensor, mark_sharding, sharding_of

dcp: Any = torch.distributed.checkpoint
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SPECS: list[Any] = [
    ("data", "model"),
    ("model", None),
    (None, ("data", "model")),
    (),
    ("model", "data"),
]


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((2, 4), ("data", "model"))


def whole(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(16 * 24).reshape(16, 24).to(dtype)


@pytest.mark.parametrize("saved", SPECS)
@pytest.mark.parametrize("loaded", SPECS)
def test_any_spec_is_loaded_onto_any_other(
    saved: Any, loaded: Any, mesh: Mesh, tmp_path: Path
) -> None:
    dcp.save({"x": distribute_tensor(whole(), mesh, saved)}, checkpoint_id=tmp_path)
    y = distribute_tensor(torch.zeros(16, 24), Mesh((2, 4), ("data", "model")), loaded)

    dcp.load({"x": y}, checkpoint_id=tmp_path)

    assert torch.equal(y.cpu(), whole())
    found = sharding_of(y)
    assert found is not None
    assert found.spec == (*loaded, None, None)[:2]


def test_each_part_is_written_once(mesh: Mesh, tmp_path: Path) -> None:
    x = torch.randn(512, 512)
    state = {"a": distribute_tensor(x, mesh, ("data", None)), "b": distribute_tensor(x, mesh, ())}

    metadata: Any = dcp.save(state, checkpoint_id=tmp_path)

    chunks = {name: len(of.chunks) for name, of in metadata.state_dict_metadata.items()}
    assert chunks == {"a": 2, "b": 1}
    n_bytes = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert 2 * x.nbytes < n_bytes < 2.05 * x.nbytes


def test_no_more_than_a_part_goes_to_a_chip(mesh: Mesh, tmp_path: Path, uploads: list[int]) -> None:
    x = torch.randn(64, 1024)
    dcp.save({"x": distribute_tensor(x, mesh, ("model", "data"))}, checkpoint_id=tmp_path)
    y = distribute_tensor(torch.zeros(64, 1024), mesh, ("data", "model"))
    uploads.clear()

    dcp.load({"x": y}, checkpoint_id=tmp_path)

    assert max(uploads) == x.nbytes // 8
    assert sum(uploads) == x.nbytes
    assert torch.equal(y.cpu(), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.float8_e5m2])
def test_dtypes_are_kept(dtype: torch.dtype, mesh: Mesh, tmp_path: Path) -> None:
    x = whole(dtype)
    dcp.save({"x": distribute_tensor(x, mesh, ("data",))}, checkpoint_id=tmp_path)
    y = distribute_tensor(torch.zeros(16, 24, dtype=dtype), mesh, (None, "model"))

    dcp.load({"x": y}, checkpoint_id=tmp_path)

    assert torch.equal(y.cpu().view(torch.uint8), x.view(torch.uint8))


def test_a_mesh_and_the_host_read_each_other(mesh: Mesh, tmp_path: Path) -> None:
    dcp.save(
        {"x": whole(), "y": distribute_tensor(whole(), mesh, ("data",))}, checkpoint_id=tmp_path
    )
    state = {
        "x": distribute_tensor(torch.zeros(16, 24), mesh, ("model",)),
        "y": torch.zeros(16, 24),
    }

    dcp.load(state, checkpoint_id=tmp_path)

    assert torch.equal(state["x"].cpu(), whole())
    assert torch.equal(state["y"], whole())


def test_views_shared_and_empty_tensors_are_saved_too(mesh: Mesh, tmp_path: Path) -> None:
    x = distribute_tensor(whole(), mesh, ("data",))
    state = {"x": x, "again": x, "view": x[3], "turned": x.t(), "one": x.sum(), "none": x[:0]}
    dcp.save(state, checkpoint_id=tmp_path)
    y = distribute_tensor(torch.zeros(16, 24), mesh, (None, "model"))
    loaded = {
        "x": y,
        "again": y,
        "turned": torch.zeros(24, 16, device="pjrt"),
        "view": torch.zeros(24),
        "one": torch.zeros((), device="pjrt"),
        "none": torch.zeros(0, 24),
    }

    dcp.load(loaded, checkpoint_id=tmp_path)

    assert torch.equal(y.cpu(), whole())
    assert torch.equal(loaded["turned"].cpu(), whole().t())
    assert torch.equal(loaded["view"], whole()[3])
    assert loaded["one"].item() == whole().sum()


def test_a_model_and_its_optimizer_go_on(mesh: Mesh, tmp_path: Path) -> None:
    state_dicts: Any = torch.distributed.checkpoint.state_dict

    def made(spec: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(16, 32).to("pjrt")
        mark_sharding(model.weight, mesh, spec)
        return model, torch.optim.AdamW(model.parameters(), 0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model(torch.ones(4, 16, device="pjrt")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    model, optimizer = made(("model", "data"))
    step(model, optimizer)
    kept = dict(
        zip(("model", "optimizer"), state_dicts.get_state_dict(model, optimizer), strict=True)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.async_save(kept, checkpoint_id=tmp_path).result()
    wanted = [step(model, optimizer) for _ in range(3)]

    model, optimizer = made(("data", "model"))
    state = dict(
        zip(("model", "optimizer"), state_dicts.get_state_dict(model, optimizer), strict=True)
    )
    dcp.load(state, checkpoint_id=tmp_path)
    state_dicts.set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )

    assert [step(model, optimizer) for _ in range(3)] == pytest.approx(wanted, rel=1e-6)
    assert sharding_of(model.weight).spec == ("data", "model")  # type: ignore[union-attr,arg-type]


def test_pytorch_lists_what_tensors_can_do_as_before() -> None:
    """`torch.compile` asks for the list, and it looks at each attribute of the class."""
    listed = torch.overrides._get_overridable_functions.__wrapped__()[0]

    assert torch.Tensor.add in listed[torch.Tensor]
