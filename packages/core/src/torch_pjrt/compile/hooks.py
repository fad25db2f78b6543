"""Functions that packages have called around compilations and launches of programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch_pjrt.session import session

if TYPE_CHECKING:
    from torch_pjrt.compile.programs import Program
    from torch_pjrt.graph.graph import Graph


class _Hooks:
    """What is called. A tuple is replaced and never changed: who goes through it need not care for others."""

    before_compile: tuple[Callable[[Graph], object], ...] = ()
    after_compile: tuple[Callable[[Program], object], ...] = ()
    before_launch: tuple[Callable[[Program], object], ...] = ()
    after_launch: tuple[Callable[[Program], object], ...] = ()


hooks = session.own("functions around compilations and launches", _Hooks())


class ProgramHooks:
    """Functions that are called until `remove()`, or to the end of the block that this is the context of.

    >>> hooks = add_program_hooks(before_compile=lambda graph: print(len(graph.nodes)))
    >>> hooks.remove()
    """

    def __init__(self, hooks: dict[str, Callable[[Any], object]]) -> None:
        self._hooks = hooks

    def remove(self) -> None:
        """Have them called no more. Does nothing the second time."""
        for when, hook in self._hooks.items():
            setattr(hooks, when, tuple([h for h in getattr(hooks, when) if h is not hook]))
        self._hooks = {}

    def __enter__(self) -> ProgramHooks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def add_program_hooks(
    *,
    before_compile: Callable[[Graph], object] | None = None,
    after_compile: Callable[[Program], object] | None = None,
    before_launch: Callable[[Program], object] | None = None,
    after_launch: Callable[[Program], object] | None = None,
) -> ProgramHooks:
    """Have functions called around compilations and launches, by whichever thread does them.

    before_compile  with the graph as it was recorded, before it is looked for on disk or compiled.
    after_compile   with the program, which was compiled or loaded (`program.compilation.loaded`).
    before_launch   with the program, whose `numbers` are those of this launch; captured steps launch too.
                    What it raises keeps the program from running; the values that it would have made are
                    lost, but for `errors.LaunchRefused`, after which reading one tries again.
    after_launch    with the program, when the device has it; it may still compute.

    They must not read or make tensors of the device. What they raise comes through to who caused the
    program; values that a launch has made are there all the same. Several are called in the order in
    which they were added.

        >>> with add_program_hooks(
        ...     after_launch=lambda program: print(len(program.outputs), "result")
        ... ):
        ...     (torch.ones(2, device="pjrt") + 1).tolist()
        1 result
        [2.0, 2.0]
    """
    given = {
        "before_compile": before_compile,
        "after_compile": after_compile,
        "before_launch": before_launch,
        "after_launch": after_launch,
    }
    added: dict[str, Callable[[Any], object]] = {}
    for when, hook in given.items():
        if hook is not None:
            one = _own(hook)
            setattr(hooks, when, (*getattr(hooks, when), one))
            added[when] = one
    return ProgramHooks(added)


def _own(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """An object of its own for each time that a function is added."""
    return partial(hook)
