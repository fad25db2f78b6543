"""The random number generator of the device: a seed and an offset.

The n-th random operator since seeding gets the key that folds `offset + n` into the seed's key. Seed and
offset are inputs of the program, the position of an operator in the program is a constant in it: so a
program is reused from step to step and draws other numbers each time.
"""

from __future__ import annotations

import hashlib
import weakref

import torch

from torch_pjrt.graph.tape import Tape, current
from torch_pjrt.session import session


class DeviceGenerator:
    """Seed and offset, both unsigned 64-bit; the offset counts random operators.

    While one thread's tape draws, another's gets a seed of its own made from this one: what two threads
    draw at the same time differs, as on other devices, where it depends on who comes first.
    """

    def __init__(self) -> None:
        self.seed = torch.initial_seed()
        self.offset = 0
        self._drawing: weakref.ref[Tape] | None = None  # whose draws `offset` goes on after
        self._others = 0

    def draw(self, tape: Tape, n_draws: int = 1) -> tuple[int, int]:
        """The next draw on this tape: which seeding of the tape, and how many draws since then.

        With `n_draws` the first of so many.
        """
        if tape.closed:
            return 0, 0  # recorded anew on another
        if not tape.draws:
            start = (self._start_of(tape),)
            if not tape.draws:  # else a finalizer has drawn meanwhile
                tape.draws += start
        seeding = len(tape.draws) - 1
        first = tape.n_draws
        tape.n_draws = first + n_draws
        return seeding, first

    def _start_of(self, tape: Tape) -> tuple[int, int]:
        """Seed and offset for a tape that begins to draw."""
        drawing = self._tape()
        if tape.nested or drawing is None or drawing is tape:
            if not tape.nested:
                self._drawing = weakref.ref(tape)
            return self.seed, self.offset
        self._others += 1
        mixed = hashlib.blake2b(f"{self.seed} {self.offset} {self._others}".encode(), digest_size=8)
        return int.from_bytes(mixed.digest(), "little"), 0

    def _tape(self) -> Tape | None:
        """The tape that is drawing; None if there is none."""
        return self._drawing() if self._drawing is not None else None

    def advance(self, tape: Tape) -> None:
        """Called when a tape ends: later draws go on where it stopped."""
        if self._tape() is tape:
            self.offset += tape.n_draws
            self._drawing = None
        tape.n_draws = 0

    def reserve(self, n_draws: int) -> tuple[int, int]:
        """Seed and offset for so many draws that no tape records: a replay's."""
        start = (self.seed, self.offset)
        self.offset += n_draws
        return start

    def position(self) -> tuple[int, int]:
        """Seed and offset, for `go_back`."""
        return self.seed, self.offset

    def go_back(self, position: tuple[int, int]) -> None:
        """Nothing was drawn since."""
        self.seed, self.offset = position

    def manual_seed(self, seed: int) -> None:
        """Start anew from `seed` (negative ones wrap, as in PyTorch)."""
        self._restart(seed % (1 << 64), 0)

    def get_state(self) -> torch.Tensor:
        """16 bytes on the CPU: seed and offset."""
        tape = self._tape()
        words = [self.seed, self.offset + (tape.n_draws if tape is not None else 0)]
        return torch.frombuffer(
            bytearray(b"".join(w.to_bytes(8, "little") for w in words)), dtype=torch.uint8
        )

    def set_state(self, new_state: torch.Tensor) -> None:
        """Go back to what `get_state` returned; `RuntimeError` for anything else."""
        if new_state.dtype != torch.uint8 or new_state.numel() != 16:
            raise RuntimeError(
                "RNG state of a pjrt device is 16 bytes (torch.uint8); "
                f"saw {new_state.numel()} elements of {new_state.dtype}"
            )
        raw = bytes(new_state.tolist())
        self._restart(int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little"))

    def _restart(self, seed: int, offset: int) -> None:
        tape = current()
        self.seed, self.offset = seed, offset
        has_drawn, tape.n_draws = tape.n_draws > 0, 0
        self._drawing = None
        if tape.draws:
            if has_drawn:
                tape.draws.append((seed, offset))
            else:  # nobody has drawn from the last: without this it would be another program
                tape.draws[-1] = (seed, offset)
            self._drawing = weakref.ref(tape)


generator = session.own("the random number generator", DeviceGenerator())
