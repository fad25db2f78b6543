"""The random number generator of the device: a seed and an offset.

The n-th random operator since seeding gets the key that folds `offset + n` into the seed's key. Seed and
offset are inputs of the program, the place of an operator in the program is a constant in it: so a
program is reused from step to step and draws other numbers each time.
"""

from __future__ import annotations

import torch

from torch_pjrt.graph.tape import Tape, state


class Generator:
    """Seed and offset, both unsigned 64-bit; the offset counts random operators."""

    def __init__(self) -> None:
        self.seed = torch.initial_seed()
        self.offset = 0

    def draw(self, tape: Tape) -> tuple[int, int]:
        """The next draw on this tape: which seeding of the tape, and how many draws since then."""
        if not tape.draws:
            tape.draws.append((self.seed, self.offset))
        draw = (len(tape.draws) - 1, tape.n_draws)
        tape.n_draws += 1
        return draw

    def advance(self, tape: Tape) -> None:
        """Called when a tape ends: later draws go on where it stopped."""
        self.offset += tape.n_draws
        tape.n_draws = 0

    def manual_seed(self, seed: int) -> None:
        """Start anew from `seed` (negative ones wrap, as in PyTorch)."""
        self._restart(seed % (1 << 64), 0)

    def get_state(self) -> torch.Tensor:
        """16 bytes on the CPU: seed and offset."""
        words = [self.seed, self.offset + state.tape.n_draws]
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
        tape = state.tape
        self.seed, self.offset = seed, offset
        tape.n_draws = 0
        if tape.draws:
            tape.draws.append((seed, offset))


generator = Generator()
