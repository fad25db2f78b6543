"""What a checkpoint has is what was saved."""

from __future__ import annotations

import json
import random
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from torch import nn

import torch_pjrt
from torch_pjrt.client import memory  # noqa: TID251
from torch_pjrt.extend import PartsLater, counters
from torch_pjrt_fsdp import CheckpointManager, RandomState, load_checkpoint, save_checkpoint
from torch_pjrt_fsdp.checkpoint import layout
from torch_pjrt_fsdp.checkpoint.writing import sealed
from torch_pjrt_spmd import CheckpointError

dcp: Any = torch.distributed.checkpoint
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64, torch.uint16, torch.bool),
    torch.complex64,
]


def numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    n = torch.Size(shape).numel()
    return torch.arange(max(n, 1))[:n].reshape(shape).to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


class Run:
    """A model with dropout, an optimizer with momenta, and a schedule."""

    def __init__(self, device: str = "pjrt") -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "position": 0,
        }

    def step(self) -> float:
        self.state["position"] += 1
        x = torch.randn(4, 8) * random.random() + np.random.rand() * self.state["position"]
        loss = self.model(x.to(self.device)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return loss.item()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_resumed_run_has_the_losses_of_one_that_was_not_interrupted(
    asynchronous: bool, tmp_path: Path
) -> None:
    with CheckpointManager(tmp_path, every=3, asynchronous=asynchronous) as manager:
        run = Run()
        losses = []
        for step in range(7):
            losses.append(run.step())
            manager.save(step, run.state)
    assert manager.steps() == [0, 3, 6]
    wanted = [run.step() for _ in range(4)]

    again = Run()
    torch.manual_seed(99)
    with CheckpointManager(tmp_path) as manager:
        assert manager.restore_latest(again.state) == 6
    assert [again.step() for _ in range(4)] == wanted

    earlier = Run()
    with CheckpointManager(tmp_path) as manager:
        manager.restore(earlier.state, 3)
    assert [earlier.step() for _ in range(3)] == losses[4:]


def test_what_changes_after_a_save_is_not_in_it(tmp_path: Path) -> None:
    state = {"x": torch.full((1 << 20,), 1.0, device="pjrt"), "y": torch.ones(1 << 20)}
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, state)
        state["x"].fill_(2.0)
        state["y"].fill_(2.0)
        manager.save(2, state)
    for step in (1, 2):
        manager.restore(state, step)
        assert [(x.cpu() == step).all().item() for x in state.values()] == [True, True]


@pytest.mark.parametrize("room", [True, False])
def test_steps_go_on_while_what_was_saved_is_read(
    room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps take the memory of the parameters that they replace; a save makes no other programs of them."""
    if not room:
        monkeypatch.setattr(memory, "free", lambda: 0)
    handed_over: list[bool] = []
    copy = PartsLater.copy
    monkeypatch.setattr(
        PartsLater,
        "copy",
        lambda self, parts: handed_over.append(copy(self, parts)) or handed_over[-1],
    )
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, capturable=True)
    state = {"model": model, "optimizer": optimizer}
    x = torch.randn(64, 256, device="pjrt")

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_pjrt.sync()

    def now() -> list[torch.Tensor]:
        tensors = [*model.state_dict().values()]
        return [x.cpu() for x in tensors + [s["exp_avg"] for s in optimizer.state.values()]]

    expected = {}
    with CheckpointManager(tmp_path, keep=None) as manager:
        for number in range(6):
            step()
            if number == 2:
                before = counters.programs_compiled
            if number % 2:  # else the device still computes the step
                expected[number] = now()
            manager.save(number, state)
            for _ in range(2):
                step()
            if not number % 2:
                manager.wait()
        assert counters.programs_compiled == before
    assert handed_over == [room] * 6
    for number, values in expected.items():
        load_checkpoint(state, manager.path(number))
        for found, value in zip(now(), values, strict=True):
            assert torch.equal(found, value)


def test_what_cannot_be_read_is_an_error_of_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: PartsLater, slot: int) -> Any:
        raise RuntimeError("the device is gone")

    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": torch.ones(4, device="pjrt")})
        manager.wait()
        with monkeypatch.context() as patched:
            patched.setattr(PartsLater, "_read", fails)
            manager.save(2, {"x": torch.ones(4, device="pjrt")})
            with pytest.raises(
                CheckpointError, match=r"`step-2` could not be read(.*\n)*.*is gone"
            ):
                manager.save(3, {"x": torch.ones(4, device="pjrt")})
        monkeypatch.setattr(memory, "free", lambda: 0)  # this one needs no other thread
        manager.save(4, {"x": torch.ones(4, device="pjrt")})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-4"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_a_piece_is_what_torch_save_would_write(
    dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    x = numbers(dtype, shape)
    save_checkpoint({"x": x}, tmp_path / "a")
    torch.save(x, tmp_path / "x.pt")
    file = tmp_path / "a" / "__0_0.distcp"

    assert torch.equal(bits(torch.load(file, weights_only=True)), bits(x))
    ours, theirs = zipfile.ZipFile(file), zipfile.ZipFile(tmp_path / "x.pt")
    assert ours.testzip() is None  # all checksums are right
    assert ours.read("archive/data/0") == theirs.read("x/data/0")[: x.nbytes]
    if x.numel():
        assert ours.read("archive/data.pkl") == theirs.read("x/data.pkl")
    loaded = {"x": torch.ones_like(x)}
    load_checkpoint(loaded, tmp_path / "a")
    assert torch.equal(bits(loaded["x"]), bits(x))


def test_pytorch_loads_it_and_it_loads_pytorchs(tmp_path: Path) -> None:
    run = Run()
    run.step()
    save_checkpoint(run.state, tmp_path / "ours")
    dcp.save({"model": run.model.state_dict(), "position": 5}, checkpoint_id=tmp_path / "theirs")

    other = {"model": Run().model.state_dict(), "position": 0}
    dcp.load(other, checkpoint_id=tmp_path / "ours")
    assert other["position"] == 1
    for name, x in run.model.state_dict().items():
        assert torch.equal(other["model"][name], x)

    again = Run()
    state = {"model": again.model, "position": 0}
    load_checkpoint(state, tmp_path / "theirs")
    assert state["position"] == 5
    assert torch.equal(again.model[0].weight, run.model[0].weight)  # type: ignore[arg-type]


def test_pieces_that_are_large_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MOST_BYTES", 100)
    x, y = torch.arange(7 * 31.0).reshape(7, 31), torch.arange(240).reshape(1, 2, 120)
    save_checkpoint({"x": x, "y": y.to("pjrt")}, tmp_path / "a")

    into = {"x": torch.zeros(7, 31, device="pjrt"), "y": torch.zeros_like(y)}
    load_checkpoint(into, tmp_path / "a")
    theirs = {"x": torch.zeros(7, 31)}
    dcp.load(theirs, checkpoint_id=tmp_path / "a")

    assert torch.equal(into["x"].cpu(), x)
    assert torch.equal(into["y"], y)
    assert torch.equal(theirs["x"], x)


def test_dtypes_of_the_state_are_kept(tmp_path: Path) -> None:
    save_checkpoint({"x": torch.arange(6.0), "y": torch.arange(6.0, device="pjrt")}, tmp_path / "a")
    into = {
        "x": torch.zeros(6, dtype=torch.bfloat16, device="pjrt"),
        "y": torch.zeros(6, dtype=torch.float64),
    }

    load_checkpoint(into, tmp_path / "a")

    assert into["x"].dtype == torch.bfloat16
    assert into["x"].tolist() == into["y"].tolist() == [0, 1, 2, 3, 4, 5]


def test_some_of_it_is_loaded(tmp_path: Path) -> None:
    run = Run()
    save_checkpoint(run.state, tmp_path / "a")
    into = {"model": nn.Sequential(nn.Linear(8, 16))}
    with pytest.raises(CheckpointError, match=r"lacks.*\n.*'model.2.weight'"):
        load_checkpoint(into, tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"lacks what the state has.*\n.*'other'"):
        load_checkpoint({"other": 3}, tmp_path / "a")

    load_checkpoint({**into, "other": 3}, tmp_path / "a", strict=False)

    assert torch.equal(into["model"][0].weight, run.model[0].weight.cpu())  # type: ignore[union-attr,operator]


def test_shapes_are_compared_before_anything_is_loaded(tmp_path: Path) -> None:
    save_checkpoint({"x": torch.ones(3), "y": torch.ones(3)}, tmp_path / "a")
    x = torch.zeros(3)
    with pytest.raises(CheckpointError, match=r"'y'.*\n.*\[3\] in.*\n.*\[4\]"):
        load_checkpoint({"x": x, "y": torch.zeros(4)}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="to_empty"):
        load_checkpoint({"x": x, "y": torch.zeros(3, device="meta")}, tmp_path / "a")
    assert x.tolist() == [0, 0, 0]


class Kept:
    """Has a state of any kind."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize(
    "held", [3, "t", None, (1, 2), [1, 2], [torch.ones(2), 5], torch.ones(2), {}, {"a": {}}]
)
def test_a_state_of_any_kind_comes_back(held: Any, tmp_path: Path) -> None:
    save_checkpoint({"kept": Kept(held)}, tmp_path / "a")
    into = Kept({})

    load_checkpoint({"kept": into}, tmp_path / "a")

    assert str(into.state) == str(held)


def test_modules_and_optimizers_may_be_within_dicts_and_lists(tmp_path: Path) -> None:
    runs = [Run(), Run()]
    for run in runs:
        run.step()
        with torch.no_grad():
            run.model[0].weight += random.random()  # type: ignore[operator]

    def nested(runs: list[Run]) -> dict[str, Any]:
        optimizers = [run.optimizer for run in runs]
        return {"app": {"models": [run.model for run in runs], "n": 2}, "optimizers": optimizers}

    with CheckpointManager(tmp_path) as manager:
        manager.save(1, nested(runs))
        others = [Run(), Run()]
        state = nested(others)
        state["app"]["n"] = 0
        assert manager.restore_latest(state) == 1

    assert state["app"]["n"] == 2
    for run, other in zip(runs, others, strict=True):
        assert torch.equal(run.model[0].weight, other.model[0].weight)  # type: ignore[arg-type]
        assert str(run.optimizer.state_dict()) == str(other.optimizer.state_dict())
    with pytest.raises(CheckpointError, match=r"has what the module lacks.*\n.*models\.0\.2"):
        load_checkpoint({"app": {"models": [nn.Sequential(nn.Linear(8, 16))]}}, manager.path(1))


def test_keys_and_containers_come_back_as_they_were(tmp_path: Path) -> None:
    nested = {
        "a": {0: {"b": torch.ones(2)}, "1": [{"c": 3}, [4, 5]]},
        "empty": {},
        "none": None,
        "list": [],
        "tuple": (1, 2.5),
        "text": "t",
        "tensors": [torch.zeros(1), torch.ones(1)],
    }
    save_checkpoint({"kept": Kept(nested)}, tmp_path / "a")
    into = Kept({"other": 3})

    load_checkpoint({"kept": into}, tmp_path / "a")

    assert str(into.state) == str(nested)


def test_an_index_that_lacks_the_path_of_a_name_is_read_all_the_same(tmp_path: Path) -> None:
    """Versions before this one kept the paths of the first save, whatever names objects had later."""
    saved = {"loader": Kept({"lanes": {0: {"round": 5}}, "seen": 1}), "x": torch.ones(2)}
    save_checkpoint(saved, tmp_path / "a")
    file = tmp_path / "a" / "checkpoint.json"
    index = json.loads(file.read_text())["index"]
    index["paths"] = [
        *(entry for entry in index["paths"] if entry[0] != "loader.lanes.0.round"),
        ["loader.lanes", ["loader", "lanes"]],
    ]
    file.write_bytes(sealed(index))

    into = Kept({})
    load_checkpoint({"loader": into, "x": torch.zeros(2)}, tmp_path / "a")

    assert into.state == {"seen": 1, "lanes": {0: {"round": 5}}}


def test_random_numbers_go_on() -> None:
    def drawn() -> list[Any]:
        here, there = torch.rand(2).tolist(), torch.rand(2, device="pjrt").tolist()
        return [
            here,
            there,
            np.random.rand(),
            np.random.randn(),
            random.random(),
            random.gauss(0, 1),
        ]

    random.gauss(0, 1)
    np.random.randn()
    state = RandomState().state_dict()
    wanted = drawn()
    drawn()

    RandomState().load_state_dict(state)

    assert drawn() == wanted


def test_a_file_system_of_fsspec_has_it(tmp_path: Path) -> None:
    folder = f"memory://{tmp_path.name}"
    run = Run()
    with CheckpointManager(folder, keep=2) as manager:
        assert manager.restore_latest(run.state) == -1
        for step in range(4):
            run.step()
            manager.save(step, run.state)
    wanted = run.step()

    again = Run()
    manager = CheckpointManager(folder)
    assert manager.steps() == [2, 3]
    assert manager.restore_latest(again.state) == 3
    assert again.step() == wanted
    manager.close()


def test_a_process_with_many_open_files_saves(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    files = [open("/dev/null") for _ in range(1100)]  # noqa: SIM115
    try:
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, {"x": torch.ones(2)})
            assert manager._saver.in_flight in (True, False)
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert manager.steps() == [1]
