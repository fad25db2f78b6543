"""Arrays that lie on several chips: the hook for packages that have XLA partition programs.

Core puts everything on one chip. A `Partitioner`, of which a process has at most one, says where else arrays
go, and how a program's results lie. The shardings of inputs are a part of a program's key, here and on disk,
only where there is a partitioner: without one nothing of this is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch_pjrt.client.shardings import Sharding
from torch_pjrt.errors import SettingError
from torch_pjrt.passes.runner import Pass, in_order
from torch_pjrt.session import session

if TYPE_CHECKING:
    import jax
    import numpy as np
    import torch

    from torch_pjrt.graph.graph import Graph
    from torch_pjrt.graph.tape import Value


class Partitioner(Protocol):
    """Where arrays lie that are on several chips, as JAX's shardings.

    >>> class OneChip(Partitioner):  # which leaves all as it is
    ...     def default(self):
    ...         return None
    >>> OneChip().default() is None
    True
    """

    def default(self) -> Sharding | None:
        """Where an array goes that nobody has placed, an upload say; None: on the device's first chip."""
        ...

    def common(self, shardings: Sequence[Sharding]) -> Sharding | None:
        """Where inputs of a program go that are on one chip, if others are on several; else None.

        Raises for shardings that no one program can take, of other chips say.
        """
        ...

    def asked_for(self, graph: Graph) -> Sharding | None:
        """Where the inputs of a program go that are all on one chip; None: they stay."""
        ...

    def of_buffer(self, buffer: Any) -> Sharding | None:
        """Where an array of a buffer's shape goes that the buffer is to hold."""
        ...

    def of_outputs(
        self,
        graph: Graph,
        values: Sequence[Value],
        inputs: Sequence[Sharding],
        outputs: Sequence[Output],
    ) -> Sequence[Sharding | None] | None:
        """How a program's results are to lie, in order; of one XLA may decide (None), or all are on one chip.

        graph    as it was recorded; passes have not run yet.
        values   its inputs, in order. inputs: their shardings.
        outputs  of each result the value, and the sharding of the input whose place it takes.
        """
        ...

    def ahead(self, target: str) -> AbstractContextManager[None]:
        """Around `compile_for(target, ...)`: within, on this thread, answers are of the target's chips."""
        ...

    def of_tensor(self, tensor: torch.Tensor) -> Sharding | None:
        """How an argument of a function that is compiled ahead lies; a tensor of any device."""
        ...

    def pinned(self) -> Mapping[int, Sharding]:
        """How what tensors hold is to lie, by the identity of the values. Asked when compiling ahead."""
        ...

    def moved(self, array: jax.Array, target: Sharding) -> jax.Array:
        """An array with another sharding, where other processes have parts of it, too; all of them do so."""
        ...

    def came(
        self, where: Sharding, shape: Sequence[int], index: tuple[slice, ...], part: np.ndarray
    ) -> None:
        """Told of each part that this process puts on its chips, of an array that others have parts of, too.

        index  a slice for each dim: where it lies in an array of this shape.
        """
        ...

    def passes(self, inputs: Sequence[Sharding]) -> Sequence[Pass]:
        """Passes of the stage `CLEAN` that run last of these, on programs whose inputs lie like this.

        They are a part of a program's key: equal ones do the same, in any process, if their `repr` is equal.
        """
        ...

    def prepare(self, module: Any) -> None:
        """Change a program, a StableHLO module of MLIR, as `Device.prepare` does, which was called before."""
        ...

    def written(self, sharding: Sharding) -> str | None:
        """A text, if there is one, that is equal in every process for equal shardings, for the disk."""
        ...


class Output:
    """A result of a program: its value, and the sharding of the input whose place it takes, if any.

    >>> Output(value_of(torch.ones(2, device="pjrt")), None).replaces is None
    True
    """

    __slots__ = ("replaces", "value")

    def __init__(self, value: Value, replaces: Sharding | None) -> None:
        self.value = value
        self.replaces = replaces


class Chosen:
    """The one partitioner of a process, or None."""

    def __init__(self) -> None:
        self.partitioner: Partitioner | None = None


chosen = session.own("who spreads arrays over chips", Chosen())


def set_partitioner(new: Partitioner) -> None:
    """Have this partitioner say where arrays go, in this process, from now on.

    Raises `SettingError` if there is another one.

        >>> class Mine(Partitioner): ...
        >>> set_partitioner(mine := Mine())
        >>> set_partitioner(mine)
        >>> set_partitioner(Mine())
        Traceback (most recent call last):
        torch_pjrt.errors.SettingError: Another package partitions programs in this process already.
          saw: ...
    """
    before = chosen.partitioner
    if before is not None and before is not new:
        raise SettingError(
            "Another package partitions programs in this process already.", saw=repr(before)
        )
    chosen.partitioner = new


def own_passes(inputs: Sequence[Sharding]) -> tuple[Pass, ...]:
    """The partitioner's passes for programs whose inputs lie like this; none without one."""
    return () if chosen.partitioner is None else tuple(chosen.partitioner.passes(inputs))


def with_own(passes: Sequence[Pass], inputs: Sequence[Sharding]) -> Sequence[Pass]:
    """All passes in order, with the partitioner's."""
    own = own_passes(inputs)
    return in_order([*passes, *own]) if own else passes
