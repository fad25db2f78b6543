"""Programs that several processes run together, each on one chip, with inputs of its own.

A package records operators that other processes take part in, collectives say, as a `JointOp`, and puts a
`Joint` on the tape. Such a tape becomes one program where all processes are about to run the same; else what
is before the first such operator runs, then this operator alone, and the rest is asked about again
(`run/together.py`). The operators of one tape may be of several joints, if one knows them all (`Joint.of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from torch_pjrt.caches import Cache
from torch_pjrt.compile.fingerprint import of_text, outline
from torch_pjrt.graph.graph import Graph, Node, graph_of, with_inputs
from torch_pjrt.graph.signature import JointOp

if TYPE_CHECKING:
    from torch_pjrt.graph.tape import Tape


class Answer(Enum):
    """What is to be done with a tape that others take part in.

    TOGETHER  run its program, which all have compiled.
    COMPILE   compile it, and ask again.
    APART     run what all begin with alike (`Joint.beginning`), or what is before the first joint operator
              and then that one alone; then ask about the rest.
    SPLIT     run it as several tapes, one after the other, each with the operators of one joint (`Joint.of`).

        >>> [answer.name for answer in JointAnswer]
        ['TOGETHER', 'COMPILE', 'APART', 'SPLIT']
    """

    TOGETHER = auto()
    COMPILE = auto()
    APART = auto()
    SPLIT = auto()


class Joint:
    """Processes that run programs together. A package says how they agree.

    name    equal in all of them, and in a later process for chips alike: a part of the programs' keys.
    chips   of each process one, in an order that all have.
    axes    the names of the axes along which they lie, for collectives in the functions of `JointOp`s, each
            with how many lie along it; given as a name alone, where there is one.

        >>> class Alone(Joint):  # a run of one process
        ...     def __init__(self):
        ...         super().__init__("alone", [client().chip], "ranks")
        ...
        ...     def propose(self, digest, is_ready, first):
        ...         return JointAnswer.TOGETHER if is_ready else JointAnswer.COMPILE
        ...
        ...     def have_compiled(self, digest, has_failed):
        ...         return not has_failed
        >>> count = JointOp("docs.count", lambda x: [x + jax.lax.psum(1, "ranks")], ())
        >>> x = value_of(torch.zeros(2, device="pjrt"))
        >>> signature = intern(count, (Slot(0),), {}, (x.spec,), (x.spec,), returns="list")
        >>> current().joint = Alone()
        >>> [y] = record(signature, [x], [])
        >>> host_array(y)
        array([1., 1.], dtype=float32)
    """

    def __init__(self, name: str, chips: Sequence[Any], axes: str | Mapping[str, int]) -> None:
        self.name, self.chips = name, tuple(chips)
        self.axes = {axes: len(self.chips)} if isinstance(axes, str) else dict(axes)

    def propose(self, digest: str, is_ready: bool, first: Node) -> Answer:
        """What is to be done, the same on all: called before anything of a tape runs.

        digest    of the program that this process would run.
        is_ready  whether it is compiled here.
        first     the first operator that others take part in.
        """
        raise NotImplementedError

    def have_compiled(self, digest: str, has_failed: bool) -> bool:
        """Whether all processes have compiled it; asked after the answer `COMPILE`."""
        raise NotImplementedError

    def beginning(
        self, texts: Callable[[], Sequence[str]], wanted: Callable[[int], Sequence[int]]
    ) -> tuple[int, Sequence[int]]:
        """What the tapes of all processes begin with alike, right after the answer `APART`.

        texts   gives for each joint operator of this process's tape, in order, a text that is equal where
                everything up to it, itself included, is.
        wanted  gives the numbers of the values made up to the n-th joint operator that are needed behind it.

        How many joint operators that is, the same on all, and what any process wants of it. 0: none.
        """
        return 0, ()

    def of(self, nodes: Sequence[Node]) -> Joint:
        """The joint of a tape that has these of the operators: where it needs fewer processes, theirs."""
        return self

    def alone(self, node: Node) -> None:
        """Return once all processes are about to run this operator alone. Raises where they are not."""
        raise NotImplementedError

    def explained(self, error: Exception) -> Exception:
        """What is raised where a launch has failed by this error of JAX."""
        raise NotImplementedError

    def replaying(self, program: Any) -> None:
        """Raise where the others are not about to launch this program of a captured step."""
        raise NotImplementedError

    # What JAX is told.

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        chips = np.array(self.chips, object).reshape(tuple(self.axes.values()))
        return jax.sharding.Mesh(chips, tuple(self.axes))

    @cached_property
    def sharding(self) -> jax.sharding.NamedSharding:
        """To JAX what processes have are copies of one array, which they are not: `mapped` sees its own."""
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    def mapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run by each process on its own arrays."""
        own = jax.sharding.PartitionSpec()
        return jax.shard_map(function, mesh=self.mesh, in_specs=own, out_specs=own, check_vma=False)

    def given(self, array: Any) -> jax.Array:
        """An array of this process's chip, or of the host, as an argument."""
        own = self.chips[self._index]
        here = array if isinstance(array, jax.Array) else jax.device_put(array, own)
        return jax.make_array_from_single_device_arrays(here.shape, self.sharding, [here])

    @cached_property
    def _index(self) -> int:
        """Which of the chips is this process's."""
        here = jax.process_index(self.chips[0].client)
        return next(i for i, chip in enumerate(self.chips) if chip.process_index == here)


class Compiled:
    """A compiled program of several processes: called with arrays of this process's chip, it gives such."""

    _call = None  # there is no function in C that takes them

    def __init__(self, compiled: Any, joint: Joint) -> None:
        self._compiled, self._joint = compiled, joint

    def __call__(self, *arguments: Any) -> list[Any]:
        results = self._compiled(*map(self._joint.given, arguments))
        return [result.addressable_data(0) for result in results]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


def joint_nodes(graph: Graph) -> list[int]:
    """The positions of the operators that others take part in."""
    return [i for i, node in enumerate(graph.nodes) if isinstance(node.op, JointOp)]


def texts_of(tape: Tape, graph: Graph) -> list[str]:
    """For each joint operator a text that is equal in processes whose tapes are alike up to it."""
    lines = outline(with_inputs(graph, _numbers_of(tape)))
    text, texts, begin = "", [], 0
    for at in joint_nodes(graph):
        text = of_text("\n".join([text, *lines[begin : at + 1]]))[:16]
        texts.append(text)
        begin = at + 1
    return texts


def _numbers_of(tape: Tape) -> frozenset[tuple[type, int]]:
    """All numbers of a tape: they are inputs of such programs."""
    ints = [(int, i) for i in range(len(tape.ints))]
    return frozenset([*ints, *((float, i) for i in range(len(tape.floats)))])


_digests: Cache[Any, tuple[str, Node]] = Cache("programs of several processes", most=4096)


def digest_of(
    key: Any, tape: Tape, live: Sequence[int], reusable: Mapping[int, int]
) -> tuple[str, Node] | None:
    """A text that is equal in processes that would run the same program; its first joint operator.

    All Python numbers are inputs of such a program, and may differ. None where it has no joint operator:
    recording one has failed, or another thread has run the tape just before.

    key   the program's, in this process: `programs.key_of`.
    """
    full_key = (key, tuple(reusable.items()))
    if full_key not in _digests:
        graph = graph_of(tape, live)
        if not (at := joint_nodes(graph)):
            return None
        _, *ground, _ = key  # without the code, which means nothing elsewhere, and where inputs lie
        lines = [f"{ground} {dict(reusable)}", *outline(with_inputs(graph, _numbers_of(tape)))]
        _digests[full_key] = of_text("\n".join(lines))[:32], graph.nodes[at[0]]
    return _digests[full_key]
