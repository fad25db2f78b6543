"""The schema of a JAX function that is to be an operator: from its annotations."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from torch_pjrt.errors import LoweringError

#   annotation                      in a schema
_PLAIN: dict[Any, str] = {
    float:                          "float",
    int:                            "int",
    bool:                           "bool",
    str:                            "str",
    list[int]:                      "int[]",
    Sequence[int]:                  "int[]",
    tuple[int, ...]:                "int[]",
}  # fmt: skip
_EXPECTED = "jax.Array, float, int, bool, str, list[int], or one of these and None"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: its name and type in the schema, and its default if it has one."""

    name: str
    kind: str
    default: Any = inspect.Parameter.empty

    @property
    def is_tensor(self) -> bool:
        return self.kind in ("Tensor", "Tensor?")

    def __str__(self) -> str:
        if self.default is inspect.Parameter.empty:
            return f"{self.kind} {self.name}"
        default = f'"{self.default}"' if isinstance(self.default, str) else self.default
        return f"{self.kind} {self.name}={default}"


@dataclass(frozen=True, slots=True, eq=False)
class OpSignature:
    """Parameters, and how many tensors a call gives; `single`: not as a tuple."""

    parameters: tuple[Parameter, ...]
    n_results: int
    single: bool

    def schema(self) -> str:
        """As PyTorch writes it."""
        of = "Tensor" if self.single else f"({', '.join(['Tensor'] * self.n_results)})"
        return f"({', '.join(map(str, self.parameters))}) -> {of}"


def signature_of(function: Callable[..., Any]) -> OpSignature:
    """Read from the annotations; a parameter without one is an array, and so is the result.

    Raises `LoweringError` for what an operator cannot take.
    """
    hints = typing.get_type_hints(function)
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise _unfit(function, f"the parameter `{parameter}`", "parameters without `*`, `/`")
        kind = _kind(function, parameter.name, hints.get(parameter.name, jax.Array))
        parameters.append(Parameter(parameter.name, kind, parameter.default))
    given = hints.get("return", jax.Array)
    if typing.get_origin(given) is tuple:
        of = typing.get_args(given)
        if Ellipsis in of or any(x is not jax.Array for x in of):
            raise _unfit(function, f"the result {given}", "tuple[jax.Array, jax.Array, ...]")
        return OpSignature(tuple(parameters), len(of), single=False)
    return OpSignature(tuple(parameters), 1, single=True)


def _kind(function: Callable[..., Any], name: str, annotation: Any) -> str:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(inner) == 1:
            return f"{_kind(function, name, inner[0])}?"
    if annotation is jax.Array or annotation is Any:
        return "Tensor"
    if typing.get_origin(annotation) is Literal:
        return _PLAIN[type(typing.get_args(annotation)[0])]
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    raise _unfit(function, f"`{name}: {annotation}`", _EXPECTED)


def _unfit(function: Callable[..., Any], saw: str, expected: str) -> LoweringError:
    code = getattr(function, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    name = getattr(function, "__name__", repr(function))
    return LoweringError(
        f"`{name}`{where} cannot be an operator of PyTorch's.", saw=saw, expected=expected
    )
