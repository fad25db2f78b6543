"""A process may end at any moment: what was complete stays, and what is not complete is not offered."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint

from hangs import HANGS_S
from torch_pjrt_fsdp import CheckpointManager, load_checkpoint
from torch_pjrt_fsdp.checkpoint import saving, storage
from torch_pjrt_fsdp.checkpoint.writer import perform
from torch_pjrt_fsdp.checkpoint.writing import Job, Plan, failed, write

Events = list[tuple[str, str]]
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Killed(BaseException):
    """Nothing runs after this, as after SIGKILL: nobody catches it, and no block of the writing cleans up."""


class Kept:
    """In the place of the writing process: keeps the job."""

    def begin(self, folder: str, job: Job, plan: Plan, memory: Any) -> None:
        self.job, self.plan = job, plan
        self.content = memoryview(bytes(memory.mapped))

    def result(self) -> None:
        return None

    def is_done(self) -> bool:
        return True

    def close(self) -> None:
        pass


def state_of(number: int) -> dict[str, Any]:
    return {"x": torch.full((100,), float(number)), "y": torch.arange(10) * number, "n": number}


def job_of(folder: Path, name: str, number: int, **more: Any) -> Kept:
    """What the writing process would get."""
    saver = saving.Saver(folder)
    kept: Any = Kept()
    saver._writer = kept
    saver.save(name, state_of(number), **more)
    saver.wait()
    return kept


def found(folder: Path) -> dict[str, int]:
    """The number of each checkpoint that is offered; all of it is verified."""
    numbers = {}
    storage.Disk(folder).recover()
    for name in storage.Disk(folder).complete():
        state = state_of(0)
        load_checkpoint(state, folder / name)
        number = numbers[name] = state["n"]
        assert torch.equal(state["x"], state_of(number)["x"])
        assert torch.equal(state["y"], state_of(number)["y"])
    return numbers


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """What has happened on the disk."""
    happened: Events = []
    monkeypatch.setattr(storage, "trace", lambda *event: happened.append(event))
    return happened


def run(kept: Kept, folder: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch) -> Events | None:
    """What happened before the process was killed; None if it was not."""
    happened: Events = []

    def trace(what: str, path: str) -> None:
        if len(happened) == killed_at:
            raise Killed
        happened.append((what, path))

    monkeypatch.setattr(storage, "trace", trace)
    try:
        write(kept.job, kept.plan, kept.content, storage.Disk(folder), lambda: True, lambda s: None)
    except Killed:
        return happened
    finally:
        monkeypatch.setattr(storage, "trace", lambda *event: None)
    return None


def lose_power(happened: Events) -> None:
    """What was not synced is lost: the contents of files, wherever they are now."""
    synced = {path for what, path in happened if what == "sync"}
    for path in {path for what, path in happened if what == "create"} - synced:
        name = os.path.basename(os.path.dirname(path)).split(".")[0]
        renamed = Path(path).parents[1] / name / os.path.basename(path)
        if os.path.exists(path):
            os.truncate(path, 0)
        elif renamed.exists():
            os.truncate(renamed, 0)


SCENES: dict[str, Callable[[Path], tuple[Kept, dict[str, int]]]] = {
    "a new one, and the oldest goes": lambda folder: (
        job_of(folder, "step-3", 3, keep=2),
        {"step-2": 2, "step-3": 3},
    ),
    "another one of the same name": lambda folder: (
        job_of(folder, "step-2", 22, keep=2),
        {"step-1": 1, "step-2": 22},
    ),
}


@pytest.mark.parametrize("disk", ["exchanges names", "exchanges none"])
@pytest.mark.parametrize("power", [True, False], ids=["power stays", "power goes"])
@pytest.mark.parametrize("scene", SCENES)
def test_killed_at_any_boundary_nothing_complete_is_lost(
    scene: str, power: bool, disk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if disk == "exchanges none":
        monkeypatch.setattr(storage, "_exchanged", lambda *paths: False)
    before = tmp_path / "before"
    for number in (1, 2):
        kept = job_of(before, f"step-{number}", number)
        assert run(kept, before, -1, monkeypatch) is None
    kept, wanted = SCENES[scene](before)
    n_moments = 0
    while True:
        folder = tmp_path / f"killed-{n_moments}"
        shutil.copytree(before, folder)
        happened = run(kept, folder, n_moments, monkeypatch)
        if happened is None:
            break
        if not power:
            lose_power(happened)
        offered = found(folder)
        # The last one that was complete is there, or the one that has replaced it.
        assert offered.get("step-2") in (2, wanted.get("step-2"))
        assert set(offered.items()) <= {*wanted.items(), ("step-1", 1), ("step-2", 2)}

        storage.Disk(folder).clean()
        assert run(kept, folder, -1, monkeypatch) is None
        assert found(folder) == wanted
        assert sorted(os.listdir(folder)) == sorted(wanted)
        n_moments += 1
    assert found(folder) == wanted
    assert n_moments > 15


def test_all_of_it_is_synced_before_it_has_its_name(tmp_path: Path, events: Events) -> None:
    kept = job_of(tmp_path, "step-1", 1)

    write(kept.job, kept.plan, kept.content, storage.Disk(tmp_path), lambda: True, lambda s: None)

    place = kept.job.save
    created = [path for what, path in events if what == "create"]
    [renamed] = [i for i, (what, _) in enumerate(events) if what == "rename"]
    synced_before = [path for what, path in events[:renamed] if what == "sync"]
    assert len(created) == 3
    assert all(place in path for path in created)
    assert set(created) < set(synced_before)
    assert events[renamed - 1] == ("sync", os.path.dirname(created[0]))  # the folder of the files
    assert events[renamed + 1] == ("sync", str(tmp_path))  # the folder that has the new name


def test_a_folder_without_an_index_is_no_checkpoint(tmp_path: Path) -> None:
    """What PyTorch's own `save` writes has its name from the beginning, and its index last."""
    torch.distributed.checkpoint.save(state_of(1), checkpoint_id=tmp_path / "step-1")
    torch.distributed.checkpoint.save(state_of(2), checkpoint_id=tmp_path / "step-2")
    (tmp_path / "step-2" / ".metadata").unlink()
    (tmp_path / "step-3").mkdir()
    with CheckpointManager(tmp_path) as manager:
        assert manager.steps() == [1]
        state = state_of(0)
        assert manager.restore_latest(state) == 1
    assert state["n"] == 1


def test_what_was_left_by_others_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "step-1.0123abcd.incomplete").mkdir(parents=True)
    (tmp_path / "step-1.0123abcd.removed").mkdir()
    (tmp_path / "mine.incomplete").mkdir()
    (tmp_path / "notes.txt").write_text("of somebody")
    with CheckpointManager(tmp_path) as manager:
        assert manager.steps() == []
        manager.save(2, state_of(2))
    assert sorted(os.listdir(tmp_path)) == ["mine.incomplete", "notes.txt", "step-2"]


@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_process_that_fails_is_not_waited_for(where: str, faulty: int, tmp_path: Path) -> None:
    kept: Any = job_of(tmp_path, "step-1", 1)
    folder = tmp_path if where == "disk" else f"memory://faults/{faulty}"
    jobs = [replace(kept.job, rank=rank, size=2, file=f"__{rank}_0.distcp") for rank in range(2)]
    jobs[faulty] = failed("step-1", kept.job.save, faulty, 2, 600.0, "no room")
    found: dict[int, str | None] = {}

    def write_part(rank: int) -> None:
        storage_of_it = storage.storage_of(folder)
        found[rank] = perform(jobs[rank], kept.plan, kept.content, storage_of_it, lambda: True)

    parts = [threading.Thread(target=write_part, args=[rank]) for rank in range(2)]
    for part in parts:
        part.start()
    for part in parts:
        part.join(HANGS_S)

    assert found == {faulty: "no room", 1 - faulty: f"Process {faulty} has failed: no room"}
    assert storage.storage_of(folder).complete() == []


class InTurns:
    """Threads of which one runs at a time, and which hand over where `storage.trace` is called."""

    def __init__(self, schedule: list[tuple[str, int]]) -> None:
        """schedule   who runs, and for how many boundaries; then each runs to its end, the first one last."""
        self.schedule = schedule
        self.changed = threading.Condition()
        self.n_passed: dict[str, int] = {}
        self.ended: set[str] = set()

    def run(self, tasks: dict[str, Callable[[], None]]) -> None:
        def of(name: str, task: Callable[[], None]) -> None:
            with self.changed:
                self.changed.wait_for(lambda: self._turn() == name)
            try:
                task()
            finally:
                with self.changed:
                    self.ended.add(name)
                    self.changed.notify_all()

        self.names = list(tasks)
        threads = [threading.Thread(target=of, args=one, name=one[0]) for one in tasks.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANGS_S)
            assert not thread.is_alive()

    def boundary(self, *event: object) -> None:
        """Of the thread that calls it."""
        name = threading.current_thread().name
        with self.changed:
            self.n_passed[name] = self.n_passed.get(name, 0) + 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._turn() == name)

    def _turn(self) -> str | None:
        for name, until in self.schedule:
            if name not in self.ended and self.n_passed.get(name, 0) < until:
                return name
        return next((name for name in reversed(self.names) if name not in self.ended), None)


def told_if_first_fails(
    kept: Any, folder: str, schedule: list[tuple[str, int]], patched: pytest.MonkeyPatch
) -> tuple[str, InTurns]:
    """What the second process is told if the first has no room, as they run in these turns."""
    turns = InTurns(schedule)
    patched.setattr(storage, "trace", turns.boundary)
    second = replace(kept.job, rank=1, size=2, file="__1_0.distcp")
    first = failed("step-1", kept.job.save, 0, 2, 600.0, "no room")
    told: list[str] = []
    left = iter(range(20))  # more looks than it needs once the first has ended

    def fail() -> None:
        perform(first, kept.plan, kept.content, storage.storage_of(folder), lambda: True)

    def is_wanted() -> bool:
        return "first" not in turns.ended or next(left, None) is not None

    def write_and_wait() -> None:
        try:
            where = storage.storage_of(folder)
            write(second, kept.plan, kept.content, where, is_wanted, turns.boundary)
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")

    turns.run({"second": write_and_wait, "first": fail})
    return told[-1], turns


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_wherever_one_fails_another_is_told_why(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second stops at each of its boundaries, and the first, which fails, at each of its own."""
    kept = job_of(tmp_path / "kept", "step-1", 1)
    n_tried = 0
    for of_second in range(1, 12):
        for of_first in range(1, 12):
            name = f"{of_second}-{of_first}"
            folder = f"{tmp_path}/{name}" if where == "disk" else f"memory://told/{name}"
            schedule = [("second", of_second), ("first", of_first), ("second", 12)]
            told, turns = told_if_first_fails(kept, folder, schedule, monkeypatch)
            assert told == "Abandoned: Process 0 has failed: no room", (name, turns.n_passed)
            assert storage.storage_of(folder).complete() == []
            n_tried += 1
    assert turns.n_passed["first"] < 12
    assert n_tried == 121


def test_a_disk_that_is_full_has_room_for_the_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = job_of(tmp_path / "kept", "step-1", 1)
    jobs = [replace(kept.job, rank=rank, size=2, file=f"__{rank}_0.distcp") for rank in range(2)]
    is_full = True

    def trace(what: str, path: str) -> None:
        nonlocal is_full
        if what == "drop":
            is_full = False
        if is_full and what == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "trace", trace)
    disk = storage.Disk(tmp_path)
    assert "No space left" in str(perform(jobs[0], kept.plan, kept.content, disk, lambda: True))

    told = perform(jobs[1], kept.plan, kept.content, disk, lambda: True)

    assert told == "Process 0 has failed: OSError: [Errno 28] No space left on device"


def test_random_kills_lose_nothing() -> None:
    script = Path(__file__).with_name("random_kills.py")
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "20", "--elements", "4000000"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "none lost, none torn" in done.stdout
