"""Whatever a state becomes from save to save, what is offered is what was there when it was saved.

Random programs of a run: its state gets and loses names, saves are refused or interrupted, the writing
process is killed, managers come and go. What they have saved is compared with copies kept in memory.
"""

from __future__ import annotations

import copy
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from torch_pjrt_fsdp import CheckpointManager
from torch_pjrt_fsdp.checkpoint import background, planning, saving
from torch_pjrt_spmd import CheckpointError

KEEP = 2


class Kept:
    """Has a state, as loaders and schedules do."""

    def __init__(self, state: dict[Any, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[Any, Any]:
        return self.state

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.state = state


class Odd:
    """What `weights_only=True` does not load."""


def plain(value: Any) -> Any:
    """Something nested as dicts, lists and texts of numbers, which can be compared."""
    if isinstance(value, Kept):
        return {"kept": plain(value.state)}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value


def blank(value: Any) -> Any:
    """The same names, with nothing in them: what a process that goes on begins with."""

    def of_leaf(x: Any) -> Any:
        if isinstance(x, Kept):
            return Kept({})
        return torch.zeros_like(x) if isinstance(x, torch.Tensor) else None

    return tree_map(of_leaf, value)


class Run:
    """A run that saves, and an account in memory of what it has saved.

    saved     of each step that must be there, what its state was.
    unsure    a step of which nobody has said whether it is complete.
    """

    def __init__(self, folder: Path, draw: random.Random, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.draw, self.patch = folder, draw, patch
        self.state: dict[str, Any] = {"x": self.tensor(), "loader": Kept({"lanes": {}})}
        self.state["app"] = {"kept": [Kept({"a": 1}), Kept({})], "n": 1}
        self.saved: dict[int, Any] = {}
        self.unsure: tuple[int, Any] | None = None
        self.step = 0
        self.manager = self.made()

    def made(self) -> CheckpointManager:
        return CheckpointManager(self.folder, keep=KEEP, random=False, preemption=None)

    def tensor(self) -> torch.Tensor:
        device = self.draw.choice(["cpu", "pjrt"])
        return torch.full((self.draw.choice([1, 4]),), self.draw.random()).to(device)

    # --- what happens to the state

    def grow(self) -> None:
        name = f"{self.draw.choice('abcd')}{self.draw.randrange(3)}"
        within = self.draw.choice([self.state, self.state["loader"].state, self.state["app"]])
        within[name] = self.draw.choice([self.tensor, lambda: self.draw.randrange(99)])()

    def shrink(self) -> None:
        for within in (self.state, self.state["loader"].state, self.state["app"]):
            names = [name for name in within if len(str(name)) == 2]
            if names:
                del within[self.draw.choice(names)]

    def change(self) -> None:
        self.state["x"].add_(1)
        self.state["app"]["n"] += 1
        for kept in self.state["app"]["kept"]:
            kept.state[self.draw.choice([0, "b", 7])] = self.draw.random()

    def turn_epoch(self) -> None:
        lanes = self.state["loader"].state["lanes"]
        if not lanes:
            lanes[self.draw.randrange(2)] = {"round": 1, "position": self.draw.randrange(9)}
        else:
            lanes.clear()

    # --- saves

    def known(self) -> None:
        """What was begun last is complete, as the manager has said."""
        if self.unsure is not None:
            step, state = self.unsure
            self.saved[step], self.unsure = state, None
            self.saved = {step: self.saved[step] for step in sorted(self.saved)[-KEEP:]}

    def save(self) -> None:
        self.step += 1
        self.manager.save(self.step, self.state)
        self.known()
        self.unsure = (self.step, plain(copy.deepcopy(self.state)))

    def wait(self) -> None:
        self.manager.wait()
        self.known()

    def refused(self) -> None:
        bad = self.draw.choice([{1.5: 1}, {"odd": Odd()}, torch.ones(2, device="meta")])
        names = list(self.state)
        self.draw.shuffle(names)
        state = {name: self.state[name] for name in names[: self.draw.randrange(1, 4)]}
        self.step += 1
        with pytest.raises(CheckpointError):
            self.manager.save(self.step, {**state, "new": torch.ones(3), "bad": bad})
        self.known()  # it has waited for the one before

    def interrupted(self) -> None:
        self.wait()
        where, what = self.draw.choice(
            [
                (planning, "_owners"),
                (planning, "_written_path"),
                (planning.Planned, "job"),
                (saving, "_copied"),
                (saving, "_copy"),
                (background, "send"),
            ]
        )

        def interrupt(*args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

        self.step += 1
        copied = saving.PartsLater.copy
        with self.patch.context() as patched:
            patched.setattr(where, what, interrupt)
            # What follows is done in this thread then.
            patched.setattr(saving.PartsLater, "copy", lambda *args: copied(*args) and False)
            try:
                self.manager.save(self.step, self.state)
                self.unsure = (self.step, plain(copy.deepcopy(self.state)))
                self.wait()
            except KeyboardInterrupt:
                pass

    def killed(self) -> None:
        process: Any = self.manager._saver._writer._process  # type: ignore[union-attr]
        if process is None:
            return
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            self.wait()
        except CheckpointError:
            assert self.unsure is not None
            step, state = self.unsure
            self.unsure = None
            if step in self.manager.steps():  # complete, though it could not say so
                self.unsure = (step, state)
                self.known()

    def begin_anew(self) -> None:
        self.manager.close()
        self.known()
        self.manager = self.made()

    def look(self) -> None:
        """All that must be there is, and nothing else."""
        self.wait()
        assert self.manager.steps() == sorted(self.saved)
        for step, state in self.saved.items():
            found = blank(self.state_like(state))
            self.manager.restore(found, step)
            assert plain(found) == state

    def state_like(self, state: Any) -> Any:
        """What has these names: dicts that were in a `Kept` are in one again."""
        if isinstance(state, dict):
            if state.keys() == {"kept"} and isinstance(state["kept"], dict):
                return Kept(state["kept"])
            return {key: self.state_like(inner) for key, inner in state.items()}
        if isinstance(state, list):
            return [self.state_like(inner) for inner in state]
        return torch.tensor(state[1]) if isinstance(state, tuple) else state


ACTS: dict[Callable[[Run], None], int] = {
    Run.grow: 4,
    Run.shrink: 3,
    Run.change: 3,
    Run.turn_epoch: 3,
    Run.save: 8,
    Run.refused: 2,
    Run.interrupted: 2,
    Run.killed: 1,
    Run.begin_anew: 1,
    Run.look: 2,
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("seed", range(16))
def test_what_is_offered_is_what_was_saved(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    run = Run(tmp_path, draw, monkeypatch)
    acts = draw.choices(list(ACTS), list(ACTS.values()), k=40)
    for act in [*acts, Run.look]:
        act(run)
    run.manager.close()
    assert run.step > 10
