"""The processes of a run, each a child that is asked the same; one that crashes or hangs ends all of them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_pjrt.testing.child import Child, environment
from torch_pjrt.testing.pytorch_suite.outcomes import Outcome, Result
from torch_pjrt_spmd.testing.distributed_suite.redirect import DEVICE, LONGER

_LOADING_S = 300.0
_OTHERS_S = 5.0  # how long those get that wait for one that failed
_WORKER = "torch_pjrt_spmd.testing.distributed_suite.worker"


class Team:
    """So many processes with a file of tests, which run its tests one after the other.

    `file` is the name of one of `files/`, or a path; `devices` is how many a test may think that there are.
    """

    def __init__(self, file: str, size: int, devices: int) -> None:
        self.file = file
        self.size = size
        self.devices = devices
        self.n_run = 0
        self.goes_on = True
        self._folder = tempfile.mkdtemp()
        os.makedirs(f"{self._folder}/barrier")
        os.makedirs(f"{self._folder}/test_dir")
        self._ranks = [
            Child(
                ["-m", _WORKER, file],
                environment(
                    BACKEND=DEVICE,
                    INIT_METHOD=f"file://{self._folder}/store",
                    TEMP_DIR=self._folder,
                    DEVICES=str(devices),
                    WORLD_SIZE=str(size),
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    MASTER_ADDR="127.0.0.1",
                    OMP_NUM_THREADS="1",
                ),
            )
            for rank in range(size)
        ]

    def tests(self) -> Mapping[str, int]:
        """The file's tests, and how many processes each wants; 0 is one without a group.

        Raises `RuntimeError` if the file cannot be loaded.
        """
        first = self._ranks[0]
        first.ask({"list": True})
        try:
            answer = first.answer(_LOADING_S)
        except TimeoutError:
            said = first.last_words()
            raise RuntimeError(
                f"not loaded after {_LOADING_S:g} s; its last line: {said}"
            ) from None
        if answer is None or "error" in answer:
            raise RuntimeError(first.how_it_ended() if answer is None else answer["error"])
        return answer["tests"]

    def run(self, name: str, timeout_s: float) -> Result:
        """A test, in all processes. `goes_on` says whether another may follow."""
        timeout_s = timeout_s * LONGER.get(name, 1) + (0 if self.n_run else _LOADING_S)
        self.n_run += 1
        begun = time.monotonic()
        for rank in self._ranks:
            rank.ask({"run": name})
        answers: list[dict[str, Any]] = []
        end = begun + timeout_s
        waiting = dict(enumerate(self._ranks))
        while waiting and time.monotonic() < end:
            for number, rank in list(waiting.items()):
                try:
                    answer = rank.answer(0.02)
                except TimeoutError:
                    continue
                del waiting[number]
                if answer is None:
                    answer = {"outcome": Outcome.CRASHED, "why": rank.how_it_ended()}
                elif "error" in answer:
                    answer = {"outcome": Outcome.FAILED, "why": answer["error"]}
                answers.append({"goes_on": False, **answer, "rank": number})
                if answer["outcome"] in (Outcome.FAILED, Outcome.CRASHED):
                    end = min(end, time.monotonic() + _OTHERS_S)
        self.goes_on = not waiting and all(a["goes_on"] for a in answers)
        # Ranks that failed alike are in the same place; others may have left each other in the middle.
        self.goes_on &= len({(a["outcome"], a["why"]) for a in answers}) == 1
        seconds = round(time.monotonic() - begun, 2)
        outcome, why = of_all(answers, f"over {timeout_s:g} s" if waiting else "")
        return Result(f"{Path(self.file).stem}::{name}", outcome, why, seconds)

    def replaced(self) -> Team:
        """A fresh one; this one ends."""
        self.stop()
        return Team(self.file, self.size, self.devices)

    def stop(self) -> None:
        """End its processes, whatever they are doing."""
        for rank in self._ranks:
            rank.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def of_all(answers: Sequence[dict[str, Any]], hung: str) -> tuple[Outcome, str]:
    """What came of a test, and why, of what its ranks say: the one whose own fault it was says most."""
    failed = [a for a in answers if a["outcome"] in (Outcome.FAILED, Outcome.CRASHED)]
    own = [a for a in failed if not a["why"].startswith(("PeerError", "PeersDiffer"))] or failed
    if own:
        return Outcome(own[0]["outcome"]), f"rank {own[0]['rank']}: {own[0]['why']}"
    if hung:
        return Outcome.HUNG, hung
    skipped = [a for a in answers if a["outcome"] == Outcome.SKIPPED]
    return (Outcome.SKIPPED, skipped[0]["why"]) if skipped else (Outcome.PASSED, "")
