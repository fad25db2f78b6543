"""How values lie, as the solver sees it: for each axis of the mesh the part of a value that is spread over
it.

A value's dims are made of atoms (`operators.Operators.atoms`); atoms are numbered through all of its dims. A
layout says of each axis of the mesh which atom is spread over it, or -1. Where several axes spread one atom,
the first of the mesh is the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod

from torch_pjrt_spmd.autoshard.network import Network
from torch_pjrt_spmd.spec import Entry

Layout = tuple[int, ...]  # of each axis the atom, or -1
Atoms = tuple[tuple[int, ...], ...]


def share(layout: Layout, sizes: Sequence[int]) -> int:
    """How many parts there are: each chip has one of so many."""
    return prod(n for atom, n in zip(layout, sizes, strict=True) if atom >= 0)


def layouts_of(atoms: Atoms, sizes: Sequence[int]) -> Iterator[Layout]:
    """All that a tensor that is marked can have: within a dim, what is spread must be outermost."""
    flat = [n for dim in atoms for n in dim]
    for layout in product(range(-1, len(flat)), repeat=len(sizes)):
        if (
            fits(layout, flat, sizes)
            and spec_of(layout, atoms, ("",) * len(sizes), sizes) is not None
        ):
            yield layout


def fits(layout: Layout, flat: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether the chips along the axes divide the atoms."""
    parts: dict[int, int] = {}
    for atom, n in zip(layout, sizes, strict=True):
        if atom >= 0:
            parts[atom] = parts.get(atom, 1) * n
    return all(flat[atom] % n == 0 for atom, n in parts.items())


def spec_of(
    layout: Layout, atoms: Atoms, names: Sequence[str], sizes: Sequence[int]
) -> tuple[Entry, ...] | None:
    """The spec that says the same; None where none does: an inner part of a dim is spread."""
    entries: list[Entry] = []
    first = 0
    for dim in atoms:
        axes: list[str] = []
        open_ = True  # all before is spread as far as it goes
        for atom, n in enumerate(dim, first):
            here = [a for a, of in enumerate(layout) if of == atom]
            if here and not open_:
                return None
            if axes and here and [names.index(x) for x in axes] > here and len(set(names)) > 1:
                return None
            axes += [names[a] for a in here]
            open_ = open_ and prod(sizes[a] for a in here) == n
        first += len(dim)
        entries.append(axes[0] if len(axes) == 1 else tuple(axes) or None)
    return tuple(entries)


def layout_of(
    spec: Sequence[Entry], atoms: Atoms, names: Sequence[str], sizes: Sequence[int]
) -> Layout | None:
    """The layout of a spec; None for one that the atoms do not allow."""
    found = [-1] * len(names)
    first = 0
    for i, dim in enumerate(atoms):
        entry = spec[i] if i < len(spec) else None
        axes = () if entry is None else (entry,) if isinstance(entry, str) else entry
        at, left = 0, list(dim)
        for name in axes:
            if name not in names:
                continue
            a = names.index(name)
            while at < len(dim) and left[at] == 1:
                at += 1
            if at == len(dim) or left[at] % sizes[a]:
                return None
            left[at] //= sizes[a]
            found[a] = first + at
        first += len(dim)
    return tuple(found)


Exchange = tuple[
    str, int, tuple[int, ...], int
]  # kind, bytes on each chip, axes by their place, how often


@lru_cache(maxsize=1 << 18)
def resharding(given: Layout, wanted: Layout, n_bytes: int, network: Network) -> int:
    """How long it takes to have a value of so many bytes lie otherwise, in ps."""
    if given == wanted:
        return 0
    return sum(exchange_time(e, network) for e in exchanges(given, wanted, n_bytes, network))


def exchanges(given: Layout, wanted: Layout, n_bytes: int, network: Network) -> list[Exchange]:
    """What chips exchange to have a value lie otherwise.

    What is cut comes first, and is free; then all-to-alls; then all-gathers, of all axes of one atom at once.
    Where the axes that an atom stays spread over are not its slowest before and after, the parts are in
    another order, and chips pass them on.
    """
    sizes = [axis.size for axis in network.axes]
    parts = share(given, sizes)
    found: list[Exchange] = []
    gathered: dict[int, list[int]] = {}
    moved: list[int] = []
    for a, (old, new) in enumerate(zip(given, wanted, strict=True)):
        if old == new:
            continue
        if old < 0:
            parts *= sizes[a]
        elif new < 0:
            gathered.setdefault(old, []).append(a)
        else:
            moved.append(a)
    for atom in {x for x in given if x >= 0}:
        if is_reordered(given, wanted, atom):
            along = tuple(a for a in range(len(given)) if atom in (given[a], wanted[a]))
            found.append(("collective-permute", n_bytes // parts, along, 1))
    found += [("all-to-all", n_bytes // parts, (a,), 1) for a in moved]
    for axes in gathered.values():
        parts //= prod(sizes[a] for a in axes)
        found.append(("all-gather", n_bytes // parts, tuple(axes), 1))
    return found


def is_reordered(given: Layout, wanted: Layout, atom: int) -> bool:
    """Whether parts of an atom that stay spread come to lie on other chips."""
    before = [a for a, x in enumerate(given) if x == atom]
    after = [a for a, x in enumerate(wanted) if x == atom]
    kept = [a for a in before if a in after]
    return before[: len(kept)] != kept or after[: len(kept)] != kept


def exchange_time(exchange: Exchange, network: Network) -> int:
    """Of one exchange, however often it runs, in ps."""
    kind, n_bytes, along, runs = exchange
    n = prod(network.axes[a].size for a in along)
    whole = n_bytes * n if kind in ("reduce-scatter", "all-to-all") else n_bytes
    return runs * network.picoseconds(kind, whole, along)
