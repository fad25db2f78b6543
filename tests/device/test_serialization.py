"""Tensors and modules go to files and come back, between devices, with shared memory still shared."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


def reloaded(thing: Any, **kwargs: Any) -> Any:
    """What `torch.load` makes of what `torch.save` wrote."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **kwargs)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def assert_same_state(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor.cpu(), theirs[name].cpu()), name


@pytest.mark.parametrize("location", ["pjrt", "pjrt:0", "cpu", None])
def test_state_of_the_device_loads_to_any_location(location: str | None) -> None:
    on_device = model().to("pjrt")

    state = reloaded(on_device.state_dict(), map_location=location)

    assert {t.device.type for t in state.values()} == {(location or "pjrt").split(":")[0]}
    assert_same_state(state, on_device.state_dict())


@pytest.mark.parametrize("weights_only", [True, False])
def test_state_of_the_cpu_loads_to_the_device(weights_only: bool) -> None:
    on_cpu = model()

    state = reloaded(on_cpu.state_dict(), map_location="pjrt", weights_only=weights_only)
    on_device = model().to("pjrt")
    on_device.load_state_dict(state)

    assert {t.device.type for t in state.values()} == {"pjrt"}
    assert_same_state(on_device.state_dict(), on_cpu.state_dict())


def test_loaded_tensors_take_part_in_training() -> None:
    on_device = model().to("pjrt")
    on_device.load_state_dict(reloaded(model().state_dict(), map_location="pjrt"), assign=True)
    for parameter in on_device.parameters():
        parameter.requires_grad_()

    on_device(torch.ones(2, 3, device="pjrt")).sum().backward()

    assert all(p.grad is not None for p in on_device.parameters())


@pytest.mark.parametrize(
    "location", ["pjrt", torch.device("pjrt"), {"cpu": "pjrt"}, lambda s, _: s]
)
def test_map_location_may_be_anything_that_pytorch_takes(location: Any) -> None:
    x = reloaded(torch.arange(4.0), map_location=location)

    assert x.device.type == ("cpu" if callable(location) else "pjrt")
    assert x.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("location", ["pjrt", "cpu"])
def test_views_that_share_memory_share_it_after_loading(location: str) -> None:
    x = torch.arange(12.0).view(3, 4).to("pjrt")

    whole, transposed, rows = reloaded([x, x.t(), x[1:]], map_location=location)
    whole[2] = 7

    assert rows.tolist() == [[4, 5, 6, 7], [7, 7, 7, 7]]
    assert transposed.stride() == (1, 4)
    assert transposed[:, 2].tolist() == [7, 7, 7, 7]


def test_pending_values_are_saved_as_they_will_be() -> None:
    x = torch.ones(3, device="pjrt") * 2 + 1

    assert reloaded(x).tolist() == [3, 3, 3]


def test_result_of_an_operator_is_saved_whole() -> None:
    x = torch.ones(2, 3, device="pjrt") * 2

    assert x.untyped_storage().nbytes() == len(x.untyped_storage()) == 24
    assert torch.equal(reloaded(x, map_location="cpu"), torch.full((2, 3), 2.0))


def test_whole_module_and_its_optimizer_are_saved() -> None:
    on_device: Any = model().to("pjrt")
    optimizer = torch.optim.AdamW(on_device.parameters())
    on_device(torch.ones(2, 3, device="pjrt")).sum().backward()
    optimizer.step()

    module, state = reloaded((on_device, optimizer.state_dict()), weights_only=False)
    fresh = torch.optim.AdamW(module.parameters())
    fresh.load_state_dict(state)

    assert_same_state(module.state_dict(), on_device.state_dict())
    moment = fresh.state[module[0].weight]["exp_avg"]
    assert moment.device.type == "pjrt"
    assert torch.equal(moment.cpu(), optimizer.state[on_device[0].weight]["exp_avg"].cpu())


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.float64], ids=str
)
def test_dtype_survives_the_file(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 0, 3]).to(dtype)

    y = reloaded(x.to("pjrt"))

    assert y.dtype == dtype
    assert torch.equal(y.cpu(), x)


def test_file_on_disk_can_be_mapped(tmp_path: Path) -> None:
    torch.save(model().to("pjrt").state_dict(), tmp_path / "weights.pt")

    state = torch.load(tmp_path / "weights.pt", map_location="pjrt", mmap=True)

    assert_same_state(state, model().state_dict())


def test_older_file_format_works_too() -> None:
    file = io.BytesIO()
    torch.save(torch.arange(3.0, device="pjrt"), file, _use_new_zipfile_serialization=False)
    file.seek(0)

    assert torch.load(file).tolist() == [0, 1, 2]


def test_pickle_keeps_values_device_and_gradient_flag() -> None:
    x = torch.arange(3.0, device="pjrt").requires_grad_()

    y = pickle.loads(pickle.dumps(x))

    assert (y.device.type, y.requires_grad, y.tolist()) == ("pjrt", True, [0, 1, 2])


def test_empty_tensor_is_pickled_where_the_device_is_the_default_one() -> None:
    with torch.device("pjrt"):
        x = pickle.loads(pickle.dumps(torch.empty(0, 3)))

    assert (x.device.type, x.shape) == ("pjrt", (0, 3))


def test_deepcopy_has_memory_of_its_own() -> None:
    original: Any = model().to("pjrt")
    duplicate = copy.deepcopy(original)

    with torch.no_grad():
        duplicate[0].weight.zero_()

    assert original[0].weight.abs().sum().item() > 0
    assert duplicate[0].weight.data_ptr() != original[0].weight.data_ptr()


def test_deepcopy_keeps_what_is_shared_shared() -> None:
    x = torch.zeros(4, device="pjrt")

    base, view = copy.deepcopy([x, x[2:]])
    base += 1

    assert view.tolist() == [1, 1]
    assert x.tolist() == [0, 0, 0, 0]


def test_data_ptr_tells_shared_memory_from_other_memory() -> None:
    a, b = torch.ones(3, device="pjrt"), torch.ones(3, device="pjrt")
    results = [a + 1, a + 1, a * 2]

    assert a.data_ptr() == a.detach().data_ptr() == a.view(3, 1).data_ptr() != 0
    assert a[1:].data_ptr() == a.data_ptr() + 4
    assert len({t.data_ptr() for t in (a, b, *results)}) == 5
    assert a.data_ptr() == a.untyped_storage().data_ptr()


def test_data_ptr_stays_when_the_content_changes() -> None:
    x = torch.ones(3, device="pjrt") * 2
    before = x.data_ptr()

    x.add_(1)
    torch.pjrt.synchronize()  # type: ignore[attr-defined]

    assert x.data_ptr() == before


def test_storage_copies_and_lists_its_bytes() -> None:
    storage = torch.tensor([1, 256], dtype=torch.int16, device="pjrt").untyped_storage()

    assert storage.nbytes() == 4
    assert storage.tolist() == storage.cpu().tolist() == storage.clone().tolist() == [1, 0, 0, 1]
