"""What would make a plan fit where the memory does not do: computed by building the changed problem.

Any layout can be made of any other, so the least memory is had where each node takes the choice that needs
least: how much must live at least is known without solving anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from torch_pjrt.errors import TorchPjrtError
from torch_pjrt_spmd.autoshard.building import Built
from torch_pjrt_spmd.autoshard.solver.problem import Problem
from torch_pjrt_spmd.roles import STATE
from torch_pjrt_spmd.spec import ShardingError

_LARGER = (2, 4, 8, 16, 32)


class NoPlan(TorchPjrtError, MemoryError):
    """No plan is within the memory of a chip.

    needed    the least bytes of a chip that any plan needs. limit: those that it may use.
    changes   what would make a plan fit, each in words.
    """

    needed: int = 0
    limit: int = 0
    changes: tuple[str, ...] = ()


def no_plan(
    built: Built,
    needed: int,
    limit: int,
    on_axes: Callable[[Mapping[str, int]], Built],
    smaller: Callable[[], Built | None],
) -> NoPlan:
    """The error, with what would help.

    needed    the memory of the smallest plan that was found.
    on_axes   the problem on axes of other sizes. smaller: that of half the batch; None where the function
              does not take it.
    """
    changes = tuple(_changes(built, needed, limit, on_axes, smaller))
    also = ", with layers that are computed again in backward" if built.again else ""
    error = NoPlan(
        "No plan fits the memory of a chip.",
        saw=f"a limit of {_size(limit)}; the plan that needs least has {_size(needed)} at its fullest time"
        f"{also}: {_size(needed - limit)} more",
        hint="; or ".join(changes)
        or "nothing that was tried fits: a smaller model, or chips with more memory",
    )
    error.needed, error.limit, error.changes = needed, limit, changes
    return error


def _changes(
    built: Built,
    needed: int,
    limit: int,
    on_axes: Callable[[Mapping[str, int]], Built],
    smaller: Callable[[], Built | None],
) -> Iterator[str]:
    besides = needed / max(least_lives(built.problem), 1)  # taken to be as much of what lives

    def about(problem: Problem) -> int:
        return int(least_lives(problem) * besides)

    sizes = {axis.name: axis.size for axis in built.network.axes}
    for name, size in sizes.items():
        for times in _LARGER:
            try:
                peak = about(on_axes({**sizes, name: size * times}).problem)
            except ShardingError:  # what is said to be spread does not divide by so many
                continue
            if peak <= limit:
                yield f"{size * times} chips along `{name}` instead of {size} ({_size(peak)})"
                break
    half = _with_smaller_state(built)
    if half is not None and (peak := about(half)) <= limit:
        yield f"an optimizer's state in elements of half as many bytes ({_size(peak)})"
    try:
        of_half = smaller()
    except ShardingError:
        return
    if of_half is not None and (peak := about(of_half.problem)) <= limit:
        yield f"half the batch ({_size(peak)})"


def least_choice(problem: Problem) -> np.ndarray:
    """The choice that needs least memory, at each time."""
    return np.array([int(u.argmin()) for u in problem.node_usages], np.int64)


def least_lives(problem: Problem) -> int:
    """The memory of that."""
    return problem.peak(least_choice(problem))


def _with_smaller_state(built: Built) -> Problem | None:
    roles = [
        built.recorded.inputs[node.members[0]].role if node.is_input else "" for node in built.nodes
    ]
    if STATE not in roles:
        return None
    usages = built.problem.node_usages
    halved = [u // 2 if role == STATE else u for u, role in zip(usages, roles, strict=True)]
    return replace(built.problem, node_usages=halved)


def _size(n: int) -> str:
    return f"{n / 2**30:,.2f} GiB" if n >= 2**30 else f"{n / 2**20:,.2f} MiB"
