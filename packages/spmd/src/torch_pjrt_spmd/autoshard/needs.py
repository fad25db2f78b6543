"""How much memory of a chip a choice needs over time: what lives by the problem, and what operators need
besides.

Of the problem are inputs and what operators make. Besides there are, while an operator runs, what it has
between (`between.py`), copies of what it takes that chips gathered or exchanged for it, and sums before they
are scattered. On a TPU some of all that is in the vector memory of the core, and not in the chip's own. XLA
for CPUs has no reduce-scatter, and adds up all gradients in one exchange: there they are whole until the last
one is computed.
"""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from torch_pjrt_spmd.autoshard.building import Built
from torch_pjrt_spmd.autoshard.flows import Node
from torch_pjrt_spmd.autoshard.lifetimes import n_bytes
from torch_pjrt_spmd.autoshard.plan import Memory
from torch_pjrt_spmd.autoshard.recording import INPUT
from torch_pjrt_spmd.autoshard.specs import exchanges, share
from torch_pjrt_spmd.autoshard.strategies import Strategy
from torch_pjrt_spmd.autoshard.views import is_view
from torch_pjrt_spmd.roles import PARAMETER, STATE

# Of a TPU's vector memory, what XLA leaves to the operator that runs (xla_tpu_scoped_vmem_limit_kib).
_VECTOR_OF_AN_OPERATOR = 16 << 20


def memory_of(built: Built, choice: np.ndarray) -> Memory:
    """At the fullest time, by roles."""
    by_role: Counter[str] = Counter()
    for node, k, usages in zip(built.nodes, choice, built.problem.node_usages, strict=True):
        if node.is_input:
            by_role[built.recorded.inputs[node.members[0]].role] += int(usages[k])
    lives, besides = _lives(built, choice), _besides(built, choice)
    at = int((lives + besides).argmax()) if len(lives) else 0
    live, beside = (int(lives[at]), int(besides[at])) if len(lives) else (0, 0)
    others = sum(n for role, n in by_role.items() if role not in (PARAMETER, STATE, INPUT))
    vector = 0 if built.on_cpus else max(built.chip.vector_memory_bytes - _VECTOR_OF_AN_OPERATOR, 0)
    return Memory(
        by_role[PARAMETER], by_role[STATE], by_role[INPUT], others, live, beside,
        built.problem.usage_limit, min(vector, live + beside),
    )  # fmt: skip


def _lives(built: Built, choice: np.ndarray) -> np.ndarray:
    """What results of operators have at each of the times that are looked at; int64 bytes of a chip."""
    sizes = [axis.size for axis in built.network.axes]
    once = {x for c in built.choices for x in c.kept} if built.again else set()
    found = np.zeros(len(built.times), np.int64)
    for (number, k), counts in built.alive.items():
        v = built.operators.all[built.tied.operators[number][0]].outputs[k]
        size = n_bytes(built.operators, v) // share(built.layout(choice, v), sizes)
        found += size * (np.minimum(counts, 1) if (number, k) in once else counts)
    for v, (begin, end) in built.lifetimes.copies.items():
        if v < 0:
            size = n_bytes(built.operators, v) // share(built.layout(choice, v), sizes)
            found += size * ((built.times >= begin) & (built.times < end))
    return found


def _besides(built: Built, choice: np.ndarray) -> np.ndarray:
    """What the operators of these times need besides; int64 bytes of a chip."""
    sums = _waiting_sums(built, choice) if built.on_cpus else {}
    first, last = min(sums, default=0), max(sums, default=-1)
    begins = np.array(sorted(sums), np.int64)
    whole = np.cumsum([0, *(sums[t] for t in sorted(sums))])
    known: dict[int, int] = {}
    found = np.zeros(len(built.times), np.int64)
    for i, t in enumerate(map(int, built.times)):
        op = built.operators.all[t]
        if is_view(op):
            continue
        node = built.of_class[built.tied.of_operator[t]]
        if node not in known:
            strategy = built.nodes[node].strategies[choice[node]]
            known[node] = _within(built, built.nodes[node], strategy) + _copies(
                built, choice, t, strategy
            )
        found[i] = known[node]
        if first <= t <= last:
            found[i] += whole[int(np.searchsorted(begins, t, "right"))]
    return found


def _parts(built: Built, strategy: Strategy, letters: frozenset[int]) -> int:
    pairs = zip(strategy.letters, built.network.axes, strict=True)
    return prod(axis.size for x, axis in pairs if x in letters)


def _within(built: Built, node: Node, strategy: Strategy) -> int:
    op = built.operators.all[node.members[0]]
    between = sum(n // _parts(built, strategy, of) for n, of in op.letters.between)
    scattered = 0
    if not built.on_cpus:
        for kind, size, along, _ in strategy.exchanges:
            if kind == "reduce-scatter":
                scattered += size * prod(built.network.axes[a].size for a in along)
    return between + scattered


def _copies(built: Built, choice: np.ndarray, t: int, strategy: Strategy) -> int:
    op = built.operators.all[t]
    sizes = [axis.size for axis in built.network.axes]
    copies: dict[int, int] = {}
    for v, wanted in zip(op.inputs, strategy.inputs, strict=True):
        given = built.layout(choice, v)
        if wanted != given and exchanges(given, wanted, 1, built.network):
            copies[built.views.base[v]] = n_bytes(built.operators, v) // share(wanted, sizes)
    return sum(copies.values())


def _waiting_sums(built: Built, choice: np.ndarray) -> dict[int, int]:
    """Of each time at which a part of a gradient is added up, what this has on a chip before, in bytes."""
    found: Counter[int] = Counter()
    sizes = [axis.size for axis in built.network.axes]
    for v in {built.views.base[v] for v in built.recorded.gradients.values()}:
        if v < 0:
            continue
        t, k = built.makers[v]
        node = built.of_class[built.tied.of_operator[t]]
        strategy = built.nodes[node].strategies[choice[node]]
        for kind, size, along, _ in strategy.exchanges:
            if kind in ("reduce-scatter", "all-reduce"):
                n = prod(sizes[a] for a in along) if kind == "reduce-scatter" else 1
                own = n_bytes(built.operators, v) // share(strategy.outputs[k], sizes)
                found[t] += max(size * n - own, 0) if v in built.lifetimes.stored else size * n
                break
    return dict(found)
