"""`CheckpointManager`: the checkpoints of a run, which goes on from the last one that is complete."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from torch_pjrt.errors import SettingError
from torch_pjrt_fsdp.checkpoint import ranks
from torch_pjrt_fsdp.checkpoint.loading import load_stored
from torch_pjrt_fsdp.checkpoint.preemption import Preemption
from torch_pjrt_fsdp.checkpoint.random_state import RandomState
from torch_pjrt_fsdp.checkpoint.saving import Saver
from torch_pjrt_fsdp.checkpoint.storage import storage_of
from torch_pjrt_fsdp.checkpoint.stored import Stored
from torch_pjrt_fsdp.checkpoint.writing import step_of

_RANDOM = "random"


class CheckpointManager:
    """Saves a run's state now and then, beside the steps, and finds it again.

    folder        which all processes see, or a URL that fsspec knows. A checkpoint is `step-12` in it.
    keep          how many stay; older ones are removed once a newer one is complete. None: all.
    every         `save` saves at steps that this divides, and at any other does nothing.
    asynchronous  whether `save` returns when the state may change again, while another process writes.
    random        whether what PyTorch, the device, NumPy and Python draw next is a part of it.
    per_process   keys of the state that each process has for itself, a loader of its own rows say.
    preemption    a signal upon which the next `save` saves whatever the step, waits until the checkpoint is
                  complete, and ends the process with status 75, `PREEMPTED`. None: no signal. It is
                  listened to from the first `save` on.
    timeout_s     how long a process waits for the others' parts.

    All processes of a run make one, and call `save` and `restore_latest` alike.

        manager = CheckpointManager("/shared/run", every=100)
        state = {"model": model, "optimizer": optimizer, "schedule": schedule, "data": loader}
        for step in range(manager.restore_latest(state) + 1, 10_000):
            train(step)
            manager.save(step, state)
        manager.close()

    What is in the state has `state_dict` and `load_state_dict`, or is a tensor, a number or a text, or nested
    dicts and lists of these. Raises `SettingError` for numbers below 1.
    """

    # The exit status of a process that has saved since it was told to end, and is to be started again:
    # EX_TEMPFAIL of sysexits.h.
    PREEMPTED = 75

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        every: int = 1,
        asynchronous: bool = True,
        random: bool = True,
        per_process: Iterable[str] = (),
        preemption: int | None = signal.SIGTERM,
        timeout_s: float = 600.0,
    ) -> None:
        for name, number in (("keep", keep), ("every", every)):
            if number is not None and number < 1:
                raise SettingError(f"`{name}` is 1 at least.", saw=f"{name}={number}")
        self.folder = os.fspath(folder)
        self._storage = storage_of(self.folder)
        self._keep, self._every, self._asynchronous = keep, every, asynchronous
        self._random = RandomState() if random else None
        self._per_process = frozenset(per_process)
        self._saver = Saver(self.folder, timeout_s=timeout_s)
        self._is_clean = False
        self._preemption = Preemption(preemption)
        self._finish = weakref.finalize(self, self._preemption.close)

    def save(self, step: int, state: Mapping[str, Any], *, force: bool = False) -> bool:
        """Save the state after a step, if `every` divides it, or by `force`, or if told to end.

        Whether a save has begun. It waits for the one before. A checkpoint of the same step is replaced.

        Raises `CheckpointError` for what cannot be saved, or if the save before has failed. `SystemExit` with
        `PREEMPTED` after a preemption.
        """
        is_last = self._preemption.is_now()
        if not (is_last or force or step % self._every == 0):
            return False
        if not self._is_clean:
            self._is_clean = True
            if ranks.rank_and_size()[0] == 0:
                self._storage.clean()
        self._saver.save(f"step-{step}", self._whole(state), keep=self._keep)
        if is_last or not self._asynchronous:
            self.wait()
        if is_last:
            self.close()
            raise SystemExit(self.PREEMPTED)
        return True

    def restore_latest(self, state: MutableMapping[str, Any], *, strict: bool = True) -> int:
        """Load the last complete checkpoint into the state; its step, or -1 if there is none yet.

        Raises as `load_checkpoint` does. The state may lie on another mesh, be of other dtypes, or in another
        number of processes.
        """
        self.wait()
        if ranks.rank_and_size()[0] == 0:
            self._storage.recover()
        steps = ranks.all_said(self.steps())[0]
        if not steps:
            return -1
        self.restore(state, steps[-1], strict=strict)
        return steps[-1]

    def restore(self, state: MutableMapping[str, Any], step: int, *, strict: bool = True) -> None:
        """Load the checkpoint of a step into the state. Raises as `load_checkpoint` does."""
        self.wait()
        stored = Stored(self.path(step))
        whole = self._whole(state)
        known = {stored.paths[name][0] for name in stored.names()}
        rank = ranks.rank_and_size()[0]
        for key in [*self._per_process, _RANDOM]:
            if f"{key}-{rank}" in whole and f"{key}-{rank}" not in known:
                del whole[f"{key}-{rank}"]  # of a process that was not there
        load_stored(whole, stored, strict=strict)
        for key in state:
            state[key] = whole.get(self._key(key), state[key])

    def steps(self) -> list[int]:
        """The steps of complete checkpoints, the last one last."""
        found = (step_of(name) for name in self._storage.complete())
        return sorted(step for step in found if step is not None)

    def path(self, step: int) -> str:
        """Where the checkpoint of a step is."""
        return f"{self.folder.rstrip('/')}/step-{step}"

    @property
    def preempted(self) -> bool:
        """Whether this process has been told to end."""
        return self._preemption.told

    @property
    def blocked_s(self) -> float:
        """How long the last `save` kept its caller."""
        return self._saver.blocked_s

    def wait(self) -> None:
        """Until the last save is complete. Raises `CheckpointError` if it has failed."""
        self._saver.wait()

    def close(self) -> None:
        """Wait for the last save, and let go of the signal. Raises as `wait` does."""
        self._finish()
        self._saver.close()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _key(self, key: str) -> str:
        return f"{key}-{ranks.rank_and_size()[0]}" if key in self._per_process else key

    def _whole(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """With what is each process's own by its rank."""
        whole = {self._key(key): value for key, value in state.items()}
        if self._random is not None:
            whole[f"{_RANDOM}-{ranks.rank_and_size()[0]}"] = self._random
        return whole
