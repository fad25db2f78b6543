"""Programs as data: statements that take what earlier ones gave, in an environment for each device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of an earlier statement (or an input), by number."""

    number: int

    def __repr__(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True, slots=True)
class Statement:
    """`name(*args, **kwargs)`; tensors among the arguments are `Ref`s."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        named = [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"{self.name}({', '.join([*map(repr, self.args), *named])})"

    def run(self, env: list[Any]) -> Any:
        """Call it in an environment."""

        def look(x: Any) -> Any:
            return env[x.number] if isinstance(x, Ref) else x

        args, kwargs = tree_map(look, (self.args, self.kwargs))
        return self.function(*args, **kwargs)


@dataclass(slots=True, eq=False)
class Program:
    """Inputs (on the CPU), statements, and how it is run."""

    kind: str
    inputs: list[torch.Tensor]
    statements: list[Statement] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"v{i} = {tuple(x.shape)} {x.dtype}{' wants grad' if x.requires_grad else ''}"
            for i, x in enumerate(self.inputs)
        ]
        lines += [f"v{len(self.inputs) + i} = {s}" for i, s in enumerate(self.statements)]
        return "\n".join([f"kind {self.kind}", *lines])

    def body(self, *inputs: torch.Tensor) -> list[Any]:
        """Run the statements; what each gave. Raises what the first that fails raises."""
        env: list[Any] = list(inputs)
        for statement in self.statements:
            env.append(statement.run(env))
        return env[len(inputs) :]

    def placed(self, device: str) -> list[torch.Tensor]:
        """Copies of the inputs on a device, with their strides."""
        return [
            x.detach()
            .clone(memory_format=torch.preserve_format)
            .to(device)
            .requires_grad_(x.requires_grad)
            for x in self.inputs
        ]


@dataclass(slots=True)
class Observed:
    """What a run gave: each statement's result or the type of its error."""

    values: list[Any]

    def leaves(self) -> Iterator[tuple[int, Any]]:
        """All results, flattened, with the number of their statement."""
        for number, value in enumerate(self.values):
            for leaf in tree_leaves(value):
                yield number, leaf


@dataclass(frozen=True, slots=True)
class Raised:
    """In the place of a result: what was raised."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        return cls(type(error).__name__, str(error).strip().partition("\n")[0][:160])
