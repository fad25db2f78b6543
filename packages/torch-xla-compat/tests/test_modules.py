"""Modules of torch_xla that are no files here have their names, or say what to use instead."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import torch_xla
from hangs import HANGS_S
from torch_pjrt.errors import UnsupportedError
from torch_xla.debug.metrics_saver import save_metrics
from torch_xla.elsewhere import INSTEAD, SAME_AS
from torch_xla.experimental.callback import on_ready_callback, on_ready_event
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config
from torch_xla.utils.cached_dataset import CachedDataset
from torch_xla.utils.closures import AsyncClosureHandler
from torch_xla.utils.keyd_queue import KeydQueue, Queue


@pytest.mark.parametrize("name", SAME_AS)
def test_a_module_has_the_names_of_the_one_that_is_here(name: str) -> None:
    module = importlib.import_module(f"torch_xla.{name}")
    other = importlib.import_module(f"torch_xla.{SAME_AS[name]}".rstrip("."))
    public = [n for n, value in vars(other).items() if not n.startswith("_")]

    assert public
    assert all(getattr(module, n) is getattr(other, n) for n in public)
    assert importlib.util.find_spec(f"torch_xla.{name}") is not None


@pytest.mark.parametrize("name", INSTEAD)
def test_a_module_without_meaning_says_what_to_use(name: str) -> None:
    package, _, last = f"torch_xla.{name}".rpartition(".")
    words = rf"The module `torch_xla\.{name}` does not exist.*\n  hint: "

    with pytest.raises(ModuleNotFoundError, match=words):
        importlib.import_module(f"torch_xla.{name}")
    with pytest.raises(UnsupportedError, match=words):
        exec(f"from {package} import {last}")
    with pytest.raises(UnsupportedError, match=words):
        getattr(importlib.import_module(package), last)
    assert importlib.util.find_spec(f"torch_xla.{name}") is None


@pytest.mark.parametrize(
    "statement",
    [
        "import torch_xla.no_such_module",
        "from torch_xla.core import no_such_module",
        "from torch_xla.experimental.no_such_module import name",
    ],
)
def test_any_other_module_names_the_page(statement: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"does not exist[^\n]*\n  hint: the page"):
        exec(statement)


def test_who_tries_an_import_and_does_something_else_does_that() -> None:
    tried = []
    for statement in (
        "from torch_xla.experimental import stablehlo_custom_call",
        "from torch_xla.core.xla_model import check_view_sharing",
        "import torch_xla.utils.gcsfs",
    ):
        try:
            exec(statement)
        except ImportError:
            tried.append(statement)

    assert len(tried) == 3


def test_older_places_of_spmd_have_its_names() -> None:
    import torch_xla.distributed.spmd as xs

    older = importlib.import_module("torch_xla.experimental.xla_sharding")
    assert older.Mesh is xs.Mesh
    assert xs.xla_sharding.mark_sharding is xs.mark_sharding  # type: ignore[attr-defined]


def test_operators_of_the_group_xla_are_called_within_torch_compile() -> None:
    def marked(x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.xla.dynamo_mark_sharding(x * 2, [0], [1], "('a',)", "('a', None)")
        return torch.ops.xla.dynamo_set_buffer_donor_(y, True) + 1

    x = torch.ones(2, 2, device="xla")

    assert torch.compile(marked, backend="pjrt", fullgraph=True)(x).tolist() == [[3.0] * 2] * 2
    assert marked(x).tolist() == [[3.0] * 2] * 2


def test_a_callback_is_called_when_a_tensor_is_there() -> None:
    seen: list[list[float]] = []
    done = threading.Event()
    tensor = torch.ones(3, device="xla") * 2

    def see(ready: torch.Tensor) -> None:
        seen.append(ready.tolist())
        done.set()

    on_ready_callback(tensor, see)

    assert on_ready_event(tensor + 1).wait(HANGS_S)
    assert done.wait(HANGS_S)
    assert seen == [[2.0] * 3]


def test_samples_of_a_cached_data_set_are_read_from_files(tmp_path: Path) -> None:
    asked: list[int] = []

    class Recording(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            asked.append(index)
            return super().__getitem__(index)

    cached = CachedDataset(Recording(torch.arange(23.0)), tmp_path, max_files_per_folder=3)
    cached.warmup()
    first = [sample[0].item() for sample in cached]
    alone = CachedDataset(None, tmp_path)

    assert asked == list(range(23))
    assert first == [sample[0].item() for sample in alone] == [float(i) for i in range(23)]
    assert len(alone) == 23
    assert (
        max(len(list(folder.iterdir())) for folder in tmp_path.rglob("*") if folder.is_dir()) == 3
    )
    with pytest.raises(IndexError):
        alone[23]
    next(tmp_path.rglob("7.pt")).unlink()
    with pytest.raises(RuntimeError, match="Sample 7"):
        alone[7]
    next(tmp_path.rglob("8.pt")).write_bytes(b"cut off")
    assert cached[8][0] == 8.0
    assert CachedDataset(None, tmp_path)[8][0] == 8.0


def test_functions_are_called_in_order_on_a_thread() -> None:
    handler, seen, done = AsyncClosureHandler(), [], threading.Event()

    handler.run_all([lambda: seen.append(1), lambda: seen.append(2), done.set])
    assert done.wait(HANGS_S)
    assert seen == [1, 2]

    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise ValueError("of the function")

    handler.run(fail)
    assert failed.wait(HANGS_S)
    with pytest.raises(RuntimeError) as error:
        for _ in range(10_000):
            handler.run(lambda: None)
    assert isinstance(error.value.__cause__, ValueError)


def test_queues_wait_for_room_and_for_keys() -> None:
    queue, keyed = Queue(2), KeydQueue(1)
    threads = [
        threading.Thread(target=lambda: [queue.put(i) for i in range(5)]),
        threading.Thread(target=lambda: [keyed.put(i, i * i) for i in (3, 1, 2)]),
    ]
    for thread in threads:
        thread.start()

    assert [queue.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [keyed.get(i) for i in (1, 2, 3)] == [1, 4, 9]
    for thread in threads:
        thread.join(HANGS_S)
    queue.close_write()
    keyed.close()
    assert queue.get() is None
    assert keyed.get(7) is None
    queue.close()
    queue.put(1)
    assert queue.get() is None
    assert queue.max_size() == 2


def test_what_the_process_did_is_appended_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLA_METRICS_FILE", str(tmp_path / "metrics"))
    torch.ones(1, device="xla").item()

    save_metrics()
    save_metrics()
    save_metrics("STDOUT")

    assert (tmp_path / "metrics").read_text().count("[MetricsData; step=") == 2
    assert "[MetricsData" in capsys.readouterr().out


def test_a_block_with_donation_by_hand_changes_nothing() -> None:
    with alias_with_buffer_donor_config(True):
        x = torch.ones(2, device="xla")
        x += 1
        torch_xla.sync()

    assert x.tolist() == [2.0, 2.0]
