"""A rule that checks the shapes and dtypes of its signature: in a call, the same name is the same size.

Signatures say `Float[Array, "rows inner"]`. Nothing evaluates that but this: in a program they are strings,
and `jaxtyping` is not needed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from typing import Any, get_type_hints

import jax
import jaxtyping
from beartype.door import is_bearable
from jaxtyping import jaxtyped

from torch_pjrt.lowering.table import Rule

KINDS = {
    name: getattr(jaxtyping, name)
    for name in ("Bool", "Float", "Inexact", "Int", "Integer", "Key", "Num", "Shaped")
}


class WrongShape(AssertionError):
    """An argument or a result of a rule is not what the rule's signature says."""


def names_shapes(rule: Rule) -> bool:
    """Whether the signature of the rule, or the type that holds its arguments, says a shape."""
    said = [str(hint) for hint in getattr(inspect.unwrap(rule), "__annotations__", {}).values()]
    if call := getattr(rule, "call", None):
        said += [str(field.type) for field in fields(call)]
    return any(f"{kind}[Array," in hint for hint in said for kind in KINDS)


@cache
def checked(rule: Rule) -> Rule:
    """The rule, refusing what its annotations do not allow. It is as it was where they name no shape."""
    if not names_shapes(rule):
        return rule
    function, call = inspect.unwrap(rule), getattr(rule, "call", None)
    hints = get_type_hints(function, localns=KINDS)
    signature = inspect.signature(function)

    @wraps(rule)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(call(*args, **kwargs)) if call else signature.bind(*args, **kwargs)
        with jaxtyped("context"):
            for name, value in bound.arguments.items():
                for part, inner, hint in _parts(name, value, hints[name]):
                    _check(f"`{part}` of `{function.__name__}`", inner, hint)
            result = rule(*args, **kwargs)
            _check(f"what `{function.__name__}` gives", result, hints["return"])
        return result

    return run


def _parts(name: str, value: Any, hint: Any) -> Iterator[tuple[str, Any, Any]]:
    """The argument, or the fields of one that holds several."""
    if not is_dataclass(hint):
        yield name, value, hint
        return
    hints = get_type_hints(hint, localns=KINDS)
    for field in fields(hint):
        yield f"{name}.{field.name}", getattr(value, field.name), hints[field.name]


def _check(what: str, value: Any, hint: Any) -> None:
    if not is_bearable(value, hint):
        raise WrongShape(f"{what} is {_brief(value)}, and the signature says {_said(hint)}")


def _said(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    return re.sub(r"jaxlib[\w.]*Array", "Array", text)


def _brief(value: Any) -> str:
    if isinstance(value, jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))})"
    return repr(value)
