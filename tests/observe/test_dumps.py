"""With a folder to dump to, each program is written down when it is compiled, whatever becomes of that."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from torch_pjrt.graph.graph import graph_of
from torch_pjrt.graph.tape import state
from torch_pjrt.observe import dumps
from torch_pjrt.session import session
from torch_pjrt.settings import settings

KINDS = ["cost.json", "graph.txt", "hlo.txt", "memory.json", "recorded.txt", "stablehlo.mlir"]


@pytest.fixture
def folder(tmp_path: Path, compiled: Count, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(settings, "dump", str(tmp_path / "of" / "this run"))
    yield tmp_path / "of" / "this run"


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_each_program_has_its_number_and_its_six_files(folder: Path) -> None:
    x = torch.ones(4).to("pjrt")

    (x + 1).tolist()
    (x @ x).item()
    (x + 1).tolist()

    assert names(folder) == [f"{n}.{kind}" for n in ("0001", "0002") for kind in KINDS]


def test_files_say_what_the_program_is_made_of(folder: Path) -> None:
    x = torch.rand(4, 4).to("pjrt")

    y = torch.sinc(x) @ x.exp()
    dropped = x.exp() + 1
    del dropped
    y.tolist()

    recorded, graph = (folder / f"0001.{n}.txt" for n in ("recorded", "graph"))
    assert recorded.read_text().count("aten.exp") == 2
    assert graph.read_text().count("aten.exp") == 1
    assert "stablehlo.exponential" in (folder / "0001.stablehlo.mlir").read_text()
    assert "HloModule" in (folder / "0001.hlo.txt").read_text()
    assert json.loads((folder / "0001.cost.json").read_text())["flops"] >= 2 * 4**3
    memory = json.loads((folder / "0001.memory.json").read_text())
    assert memory["argument_bytes"] == memory["output_bytes"] == 64


def test_numbers_go_on_after_those_of_an_earlier_run(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "0007.graph.txt").write_text("of an earlier run")

    torch.arange(5, device="pjrt").tolist()

    assert "0008.graph.txt" in names(folder)
    assert (folder / "0007.graph.txt").read_text() == "of an earlier run"


def test_program_that_cannot_be_compiled_is_dumped_as_far_as_it_came(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_pjrt.client.client import Client

    def refuse(self: Client, lowered: object) -> None:
        raise RuntimeError("refused")

    x = torch.ones(3, device="pjrt") + 1
    with monkeypatch.context() as patch:
        patch.setattr(Client, "compile_lowered", refuse)
        with pytest.raises(RuntimeError, match="refused"):
            torch_pjrt.sync()
    del x

    assert names(folder) == ["0001.graph.txt", "0001.recorded.txt", "0001.stablehlo.mlir"]


@pytest.mark.parametrize("where", ["a file", "no permission", "half"])
def test_write_that_fails_warns_once_and_the_program_runs(
    where: str, compiled: Count, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dump"
    monkeypatch.setattr(settings, "dump", str(folder))
    monkeypatch.setattr(session, "done", set())
    if where == "a file":
        folder.write_text("in the way")
    elif where == "no permission":
        monkeypatch.setattr(settings, "dump", "/proc/nothing/can be made here")
    else:

        def fail(self: Path, text: str) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_text", fail)
    x = torch.ones(3).to("pjrt")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        results = [(x + 1).tolist(), (x * 5).tolist()]

    assert results == [[2, 2, 2], [5, 5, 5]]
    assert len([w for w in told if "TORCH_PJRT_DUMP" in str(w.message)]) == 1


def test_failing_dump_fails_nothing_where_warnings_are_errors(
    compiled: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "dump", "/proc/nothing/can be made here")
    monkeypatch.setattr(session, "done", set())
    x = torch.ones(3).to("pjrt")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (x + 1).tolist() == [2, 2, 2]


def test_nothing_is_written_without_a_folder(compiled: Count, tmp_path: Path) -> None:
    assert settings.dump is None

    assert torch.ones(3, device="pjrt").tolist() == [1, 1, 1]

    assert dumps.begin(graph_of(state.tape, ()), graph_of(state.tape, ())) is None


def test_variable_names_the_folder(python: Callable[..., object], tmp_path: Path) -> None:
    python(
        "import torch; torch.arange(3, device='pjrt').tolist()", TORCH_PJRT_DUMP=str(tmp_path / "d")
    )

    assert "0001.hlo.txt" in names(tmp_path / "d")
