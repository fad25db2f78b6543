"""What is larger than a chip is made, initialized, loaded and saved in parts: no place has all of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.extend import Program, add_program_hooks, client
from torch_pjrt_spmd import (
    CheckpointError,
    Mesh,
    distribute_tensor,
    load_safetensors,
    local_shards,
    mark_sharding,
    save_safetensors,
    sharding_of,
)

pytestmark = pytest.mark.usefixtures("no_garbage")

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]
N = 1 << 18  # elements in a part of what these tests call big
_compiled: list[Program] = []
add_program_hooks(after_compile=_compiled.append)


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((2, 4), ("data", "model"))


@contextmanager
def most_on_a_chip(bytes_at_most: int) -> Iterator[None]:
    """No chip may hold more than so much more than now, nor a program need it."""
    torch_pjrt.sync()
    before = [pjrt.memory_allocated(chip=i) for i in range(8)]
    _compiled.clear()
    yield
    torch_pjrt.sync()
    for i in range(8):
        assert pjrt.memory_allocated(chip=i) - before[i] <= bytes_at_most
    for program in _compiled:
        needs = program.compiled.memory_analysis()
        assert needs.temp_size_in_bytes + needs.output_size_in_bytes <= bytes_at_most


def whole(n: int = 8) -> torch.Tensor:
    return torch.arange(float(n * N)).reshape(n, N)


MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(8, N, device="pjrt"),
    "zeros": lambda: torch.zeros(8, N, device="pjrt"),
    "randn": lambda: torch.randn(8, N, device="pjrt"),
    "arange": lambda: torch.arange(8 * N, device="pjrt").reshape(8, N),
    "uniform_": lambda: torch.empty(8, N, device="pjrt").uniform_(),
    "computed": lambda: torch.ones(8, N, device="pjrt") * 2 + 1,
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_marked_before_it_is_computed_is_made_in_parts(mesh: Mesh, name: str) -> None:
    with most_on_a_chip(5 * 4 * N):  # of 32 * N bytes; random numbers are made of bits
        x = mark_sharding(MAKERS[name](), mesh, (("data", "model"),))
        torch_pjrt.sync()

    assert [tuple(s.data.shape) for s in local_shards(x)] == [(1, N)] * 8


def test_module_made_on_meta_is_marked_and_then_initialized_in_parts(mesh: Mesh) -> None:
    torch.manual_seed(0)
    expected = nn.Linear(N // 512, 4096, device="pjrt").weight.detach().cpu()
    with torch.device("meta"):
        model = nn.Linear(N // 512, 4096)
    torch.manual_seed(0)

    with most_on_a_chip(5 * model.weight.nbytes // 8):
        model.to_empty(device="pjrt")
        mark_sharding(model.weight, mesh, (("data", "model"),))
        model.reset_parameters()
        torch_pjrt.sync()

    assert torch.equal(model.weight.detach().cpu(), expected)
    found = sharding_of(model.weight)
    assert found is not None
    assert found.spec == (("data", "model"), None)


WRITES: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "load_state_dict": lambda m, x: m.load_state_dict({"w": x}),
    "copy_": lambda m, x: m.w.data.copy_(x),  # type: ignore[union-attr]
    "copy_ of halves": lambda m, x: m.w.data.copy_(x.double()),  # type: ignore[union-attr]
    "copy_ of columns": lambda m, x: m.w.data.copy_(x.t().contiguous().t()),  # type: ignore[union-attr]
    "copy_ of parts": lambda m, x: [m.w.data[:, i::2].copy_(x[:, i::2]) for i in (0, 1)],  # type: ignore[union-attr,index]
    "set": lambda m, x: m.w.data.__setitem__(..., x),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("name", WRITES)
def test_content_from_the_host_goes_to_each_chip_in_its_part(
    mesh: Mesh, uploads: list[int], name: str
) -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.empty(8, N, device="pjrt"))
    mark_sharding(model.w, mesh, (("data", "model"),))
    uploads.clear()

    with most_on_a_chip(3 * 4 * N):
        WRITES[name](model, whole())
        torch_pjrt.sync()

    assert uploads == ([2 * N] * 16 if name == "copy_ of parts" else [4 * N] * 8)
    assert torch.equal(model.w.detach().cpu(), whole())


def test_a_state_dict_is_assigned_in_parts(mesh: Mesh, uploads: list[int]) -> None:
    with torch.device("meta"):
        model = nn.Linear(N // 64, 512, bias=False)
    expected = torch.randn(512, N // 64)

    model.load_state_dict(
        {"weight": distribute_tensor(expected, mesh, ("data", "model"))}, assign=True
    )

    assert uploads == [expected.nbytes // 8] * 8
    model(torch.ones(1, N // 64, device="pjrt")).sum().backward()
    assert torch.equal(model.weight.detach().cpu(), expected)
    model.weight.data = distribute_tensor(expected * 2, mesh, ("data", "model"))
    assert torch.equal(model.weight.detach().cpu(), expected * 2)


def test_the_state_of_an_optimizer_is_loaded_in_parts(mesh: Mesh, uploads: list[int]) -> None:
    model = nn.Linear(N // 64, 512, bias=False)
    first = torch.optim.Adam(model.parameters())
    model(torch.ones(1, N // 64)).sum().backward()
    first.step()
    state = copy.deepcopy(first.state_dict())
    ours = nn.Linear(N // 64, 512, bias=False, device="meta").to_empty(device="pjrt")
    mark_sharding(ours.weight, mesh, ("data", "model"))
    ours.load_state_dict(model.state_dict())
    second = torch.optim.Adam(ours.parameters())
    uploads.clear()

    second.load_state_dict(state)

    assert uploads == [model.weight.nbytes // 8] * 16
    for net, optimizer in ((model, first), (ours, second)):
        net.weight.grad = torch.ones_like(net.weight)
        optimizer.step()
    assert torch.allclose(ours.weight.detach().cpu(), model.weight.detach(), atol=1e-6)
    found = second.state[ours.weight]["exp_avg"]
    assert torch.equal(found.cpu(), first.state[model.weight]["exp_avg"])
    assert sharding_of(found) == sharding_of(ours.weight)


def test_a_parameter_that_gets_other_data_stays_marked(mesh: Mesh) -> None:
    p = nn.Parameter(torch.ones(16, 8, device="pjrt"))
    mark_sharding(p, mesh, ("data", "model"))

    p.data = torch.full((16, 8), 2.0, device="pjrt") + 1
    p.sum().backward()
    torch_pjrt.sync()

    for tensor in (p, p.grad):
        found = sharding_of(tensor)  # type: ignore[arg-type]
        assert found is not None
        assert found.spec == ("data", "model")


def test_a_mapped_file_is_loaded_in_parts(mesh: Mesh, uploads: list[int], tmp_path: Path) -> None:
    torch.save({"w": whole()}, tmp_path / "w.pt")
    w = mark_sharding(torch.empty(8, N, device="pjrt"), mesh, (None, "model"))
    uploads.clear()

    w.copy_(torch.load(tmp_path / "w.pt", mmap=True)["w"])

    assert uploads == [8 * N] * 8  # two chips have each of four parts
    assert torch.equal(w.cpu(), whole())


def test_saving_moves_nothing_between_chips_and_keeps_nothing(mesh: Mesh, tmp_path: Path) -> None:
    x = distribute_tensor(whole(), mesh, (None, ("data", "model")))

    with most_on_a_chip(0):
        torch.save({"x": x, "view": x[2:4]}, tmp_path / "x.pt")

    array: Any = torch_pjrt.to_jax(x)
    assert array._npy_value is None  # what JAX keeps of what it has read
    loaded = torch.load(tmp_path / "x.pt", map_location="cpu")
    assert torch.equal(loaded["x"], whole())
    assert torch.equal(loaded["view"], whole()[2:4])


# --- safetensors


class Tied(nn.Module):
    """A model with a buffer, a parameter of two names, several dtypes, and one that is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.head = nn.Linear(64, 256, bias=False)
        self.head.weight = self.up.weight
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("halves", torch.randn(16, 8).bfloat16())
        self.register_buffer("flags", torch.randn(16) > 0)
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("turned", torch.randn(8, 16).t())


def on(mesh: Mesh, spec: tuple[Any, ...]) -> Tied:
    with torch.device("meta"):
        model = Tied()
    model.to_empty(device="pjrt")
    model.head.weight = model.up.weight
    for tensor in (model.up.weight, model.down.weight, model.halves, model.turned):
        mark_sharding(tensor, mesh, spec)  # type: ignore[arg-type]
    return model


def assert_equal_states(found: nn.Module, expected: nn.Module) -> None:
    theirs = expected.state_dict()
    for name, tensor in found.state_dict().items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor.cpu(), theirs[name].cpu()), name


@pytest.mark.parametrize("most_bytes", [None, 50_000], ids=["one file", "several files"])
def test_models_are_saved_and_loaded_onto_another_mesh(
    mesh: Mesh, tmp_path: Path, most_bytes: int | None
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    source = Tied()
    first = on(mesh, ("data", "model"))
    first.load_state_dict(source.state_dict())

    files = save_safetensors(first, tmp_path / "m.safetensors", most_bytes=most_bytes)
    index = files[0] if most_bytes is None else tmp_path / "m.safetensors.index.json"
    second = on(Mesh((8,), ("all",)), ("all",))
    assert load_safetensors(second, index) == ([], [])

    assert len(files) == (1 if most_bytes is None else 6)
    assert_equal_states(second, source)
    found = sharding_of(second.up.weight)
    assert found is not None
    assert found.spec == ("all", None)
    if most_bytes is None:
        there = safetensors.load_file(index)
        assert all(torch.equal(there[n], t) for n, t in source.state_dict().items())
    else:
        assert json.loads(index.read_text())["weight_map"].keys() == source.state_dict().keys()


def test_files_of_others_are_loaded_into_modules_on_any_device(mesh: Mesh, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    source = Tied()
    file = tmp_path / "m.safetensors"
    state = {n: t.contiguous() for n, t in source.state_dict().items() if n != "head.weight"}
    safetensors.save_file(state, file)

    for model in (on(mesh, ("data",)), Tied(), Tied().to("pjrt")):
        assert load_safetensors(model, [file]) == ([], [])
        assert_equal_states(model, source)
    wide = mark_sharding(torch.empty(256, 64, dtype=torch.float64, device="pjrt"), mesh, ("data",))
    load_safetensors({"up.weight": wide}, file, strict=False)
    assert torch.equal(wide.cpu(), source.up.weight.detach().double())


def test_safetensors_come_and_go_in_parts(mesh: Mesh, uploads: list[int], tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    x = distribute_tensor(whole(), mesh, ("data", "model"))
    y = mark_sharding(torch.empty(8, N, device="pjrt"), mesh, (None, ("data", "model")))
    torch_pjrt.sync()

    with most_on_a_chip(4 * N):
        save_safetensors({"x": x}, tmp_path / "x.safetensors")
        uploads.clear()
        load_safetensors({"x": y}, tmp_path / "x.safetensors")

    assert uploads == [4 * N] * 8
    assert torch.equal(y.cpu(), whole())
    array: Any = torch_pjrt.to_jax(x)
    assert array._npy_value is None


def test_what_does_not_fit_is_refused_before_anything_is_loaded(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    file = tmp_path / "x.safetensors"
    save_safetensors({"a": torch.ones(4), "b": torch.ones(2)}, file)
    a, b = torch.zeros(4, device="pjrt"), torch.zeros(3, device="pjrt")
    for into, says in (
        ({"a": a, "c": b}, "in no file.*\n.*saw: c"),
        ({"a": a}, "nobody's.*\n.*saw: b"),
        ({"a": a, "b": b}, "another shape"),
        ({"a": a, "b": torch.empty(2, device="meta")}, "no memory"),
    ):
        with pytest.raises(CheckpointError, match=says):
            load_safetensors(into, file)
        assert not a.any()
    assert load_safetensors({"a": a, "c": b}, file, strict=False) == (["c"], ["b"])
    assert a.all()
    for wrong in (torch.empty(2, device="meta"), torch.ones(2, dtype=torch.complex128)):
        with pytest.raises(CheckpointError, match="cannot be saved"):
            save_safetensors({"x": wrong}, tmp_path / "y.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


# --- what is counted


def test_each_chip_counts_its_part(mesh: Mesh) -> None:
    def used(make: Callable[[], Any]) -> list[int]:
        torch_pjrt.sync()
        before = [pjrt.memory_allocated(chip=i) for i in range(8)]
        made = make()
        torch_pjrt.sync()
        after = [pjrt.memory_allocated(chip=i) for i in range(8)]
        del made
        return [b - a for a, b in zip(before, after, strict=True)]

    size = 4 * 8 * N
    assert used(lambda: distribute_tensor(whole(), mesh, ("data", "model"))) == [size // 8] * 8
    assert used(lambda: distribute_tensor(whole(), mesh, (None, "model"))) == [size // 4] * 8
    assert used(lambda: distribute_tensor(whole(), mesh, ())) == [size] * 8
    assert used(lambda: whole().to("pjrt")) == [size, *[0] * 7]
    two = Mesh((2,), ("a",), (2, 5))
    on_two = used(lambda: distribute_tensor(whole(), two, ("a",)))
    assert on_two == [size // 2 * (i in (2, 5)) for i in range(8)]


def test_memory_is_that_of_the_fullest_chip_and_listed_for_each(mesh: Mesh) -> None:
    torch_pjrt.sync()
    pjrt.reset_peak_memory_stats()
    part = distribute_tensor(whole(), Mesh((2,), ("a",), (6, 7)), ("a",))

    used = pjrt.memory_allocated()
    assert used == pjrt.memory_allocated(chip=6) >= 16 * N > pjrt.memory_allocated(chip=3)
    assert pjrt.max_memory_allocated(chip=6) >= used > pjrt.max_memory_allocated(chip=3)
    stats = pjrt.memory_stats(chip=6)
    assert stats["allocated_bytes.all.current"] == used
    listed = pjrt.memory_summary().splitlines()
    assert sum("  chip " in line for line in listed) == len(client().chips) == 8
    assert "held on chip 6 by" in listed
    assert any("4.0 MiB  float32[8, 262144]" in line for line in listed)
    del part
    with pytest.raises(RuntimeError, match="no such chip"):
        pjrt.memory_allocated(chip=8)
