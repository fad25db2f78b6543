"""Kill a process that saves, and the one that writes for it, at random moments; look at what is there then.

Half of the moments are soon after something has begun to be written, the others at any time.

    python packages/fsdp/tests/random_kills.py --kills 1000

Each kill is of a process that has gone on from the last checkpoint, has saved one, and goes on doing so.
After it, each checkpoint that is offered is loaded and verified, and those that were said to be complete must
be there. Prints what it found, and fails at the first that is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from torch_pjrt_fsdp import CheckpointManager, load_checkpoint
from torch_pjrt_fsdp.checkpoint import ranks
from torch_pjrt_spmd import CheckpointError

KEEP = 2
VICTIMS = ("trainer", "writer", "both")


def state_of(step: int, n_elements: int) -> dict[str, Any]:
    """What a checkpoint of this step has."""
    return {
        "x": torch.full((n_elements,), float(step)),
        "y": [torch.arange(1000) * step, torch.full((3, 7), step)],
        "step": step,
    }


def train(folder: str, said: int, n_elements: int) -> None:
    """Go on from the last checkpoint, save one after the other, and say which are complete."""
    manager = CheckpointManager(folder, keep=KEEP, random=False, preemption=None)
    step = manager.restore_latest(state_of(0, n_elements))
    while True:
        step += 1
        with contextlib.suppress(CheckpointError):  # the writing process was killed
            manager.save(step, state_of(step, n_elements))
            manager.wait()
            os.write(said, f"{step}\n".encode())


def check(folder: str, n_elements: int) -> list[int]:
    """The steps that are offered, each of which is what was saved."""
    manager = CheckpointManager(folder)
    steps = manager.steps()
    for step in steps:
        state = state_of(0, n_elements)
        try:
            load_checkpoint(state, manager.path(step))
        except CheckpointError:
            if step in manager.steps():  # else a writing process that goes on has removed it
                raise
            continue
        wanted = state_of(step, n_elements)
        assert state["step"] == step
        assert torch.equal(state["x"], wanted["x"])
        assert all(map(torch.equal, state["y"], wanted["y"]))
    return steps


def children(number: int) -> list[int]:
    """The processes that a process has started."""
    with contextlib.suppress(FileNotFoundError):
        return [int(c) for c in Path(f"/proc/{number}/task/{number}/children").read_text().split()]
    return []


def kill(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def is_writing(folder: str) -> bool:
    """Whether a part of a checkpoint is there, which is not complete."""
    return any(name.endswith(".incomplete") for name in os.listdir(folder))


def wait_for_a_moment(folder: str, draw: random.Random, most_s: float) -> None:
    """A random one; of two, one follows soon when something begins to be written."""
    if draw.random() < 0.5:
        late = time.monotonic() + 60
        while not is_writing(folder):
            assert time.monotonic() < late, "nothing begins to be written"
            time.sleep(0.0005)
        most_s /= 50
    time.sleep(draw.uniform(0, most_s))


def one_kill(
    folder: str, draw: random.Random, most_s: float, n_elements: int
) -> tuple[str, list[int], bool]:
    """Who was killed, which steps were said to be complete, and whether something was being written."""
    heard, said = os.pipe()
    trainer = os.fork()
    if not trainer:
        os.close(heard)
        try:
            train(folder, said, n_elements)
        finally:
            os._exit(1)
    os.close(said)
    text = b""
    while not text.endswith(b"\n"):
        assert select.select([heard], [], [], 60)[0], "the process does not begin"
        some = os.read(heard, 100)
        assert some, "the process has ended"
        text += some
    wait_for_a_moment(folder, draw, most_s)
    victim = draw.choice(VICTIMS)
    writers = children(trainer)
    was_writing = is_writing(folder)
    if victim != "trainer":
        for writer in writers:
            kill(writer)
    if victim == "writer":
        time.sleep(draw.uniform(0, most_s))
    kill(trainer)
    os.waitpid(trainer, 0)
    while some := os.read(heard, 4096):
        text += some
    os.close(heard)
    return victim, [int(word) for word in text.split()], was_writing


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--most", type=float, default=0.1, help="seconds from a save to a kill")
    parser.add_argument("--elements", type=int, default=200_000, help="of the largest tensor")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    ranks.rank_and_size()  # imports what the processes would
    torch.set_num_threads(1)  # a forked process has no others
    victims: collections.Counter[str] = collections.Counter()
    n_complete = n_writing = 0
    last = -1
    with tempfile.TemporaryDirectory() as folder:
        for n_kills in range(1, arguments.kills + 1):
            victim, complete, was_writing = one_kill(
                folder, draw, arguments.most, arguments.elements
            )
            steps = check(folder, arguments.elements)
            last = max([last, *complete])
            assert last <= max(steps, default=-1), f"{last} is lost: {steps}"
            assert len(steps) >= min(KEEP, len(complete)), f"{steps} after {complete}"
            victims[victim] += 1
            n_complete += len(complete)
            n_writing += was_writing
            if n_kills % 100 == 0:
                print(f"{n_kills} kills, last checkpoint {last}", flush=True)
    print(
        f"{arguments.kills} kills ({dict(victims)}), {n_writing} while one was being written; "
        f"{n_complete} checkpoints complete, none lost, none torn"
    )
    assert n_complete >= arguments.kills
    assert n_writing >= arguments.kills // 10, "the kills came at no moment that matters"
    return 0


if __name__ == "__main__":
    sys.exit(main())
