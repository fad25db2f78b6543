"""What numba compiles, compiled before a clock runs: seconds of work on a machine that has not done so."""

from __future__ import annotations

from functools import cache

import numpy as np

from torch_pjrt_spmd.autoshard.solver.arrays import arrays_of
from torch_pjrt_spmd.autoshard.solver.contraction import Contraction
from torch_pjrt_spmd.autoshard.solver.core import core_of
from torch_pjrt_spmd.autoshard.solver.episodes import Episodes
from torch_pjrt_spmd.autoshard.solver.incumbent import Clock, Incumbent
from torch_pjrt_spmd.autoshard.solver.known import planted
from torch_pjrt_spmd.autoshard.solver.relaxation import Relaxation


@cache
def prepare() -> None:
    """Compile, or load from numba's cache on disk, all that `solve` runs; once in a process."""
    problem, _ = planted(30, 1, strategies=3, follow=0.0)
    core = core_of(problem, Contraction(problem))
    relaxation = Relaxation(arrays_of(core))
    relaxation.step(np.inf)
    Episodes(relaxation.arrays, relaxation, Incumbent(core, Clock.of(60.0)), 0).compile()
