"""Chooses one strategy for each node of a graph: least cost, within a limit of memory at every time.

`solve(problem, seconds)` gives a `Solution` or raises `Infeasible`; `read(path)` gives a `Problem`;
`prepare()` compiles what is compiled, before a clock runs.
"""

from torch_pjrt_spmd.autoshard.solver.preparing import prepare
from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN, Infeasible, Problem, Solution
from torch_pjrt_spmd.autoshard.solver.reading import UnreadableProblem, from_json, read
from torch_pjrt_spmd.autoshard.solver.solving import solve

__all__ = [
    "FORBIDDEN",
    "Infeasible",
    "Problem",
    "Solution",
    "UnreadableProblem",
    "from_json",
    "prepare",
    "read",
    "solve",
]
