"""Annotations: an operator that gives what it is given, and says something of it to passes and to XLA.

    torch_pjrt::annotate(Tensor self, str kind, str value) -> Tensor

`kind` is a name that a package has defined, `value` its arguments as a Python literal: both are part of
the node's signature, and so of the program's key, here and on disk. A pass reads them by
`annotation_of`; the kind's rule, a function on JAX arrays, is what the node becomes. It is an operator
of PyTorch's, so that `torch.compile`, autograd, rolled layers and captured steps keep it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt.errors import SettingError
from torch_pjrt.lowering import added
from torch_pjrt.session import session

if TYPE_CHECKING:
    from torch_pjrt.graph.graph import Node

_library = torch.library.Library("torch_pjrt", "FRAGMENT")
_library.define("annotate(Tensor self, str kind, str value) -> Tensor")

ANNOTATE = torch.ops.torch_pjrt.annotate.default
_PLAIN = (bool, int, str)


@dataclass(frozen=True, slots=True)
class Annotation:
    """What a node of `annotate` says of its value: a kind, and the arguments that were given.

    >>> Annotation("mine.layout", ("rows", 2)).args
    ('rows', 2)
    """

    kind: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of annotation. `rule` is called with the array and the arguments; None: the value as it is."""

    name: str
    rule: Callable[..., Any] | None
    gradient: bool | str
    again: str | None = None


kinds: dict[str, Kind] = session.own("kinds of annotations", {})


def define_annotation(
    kind: str,
    rule: Callable[..., Any] | None = None,
    *,
    gradient: bool | str = True,
    again: str | None = None,
    fingerprint: str | None = None,
) -> None:
    """Make a kind of annotation known to this process, under a name like `mine.layout`.

    rule         what a node becomes: from a JAX array and the annotation's arguments to an array of the
                 same shape and dtype, `jax.lax.with_sharding_constraint` say. None: the array as it is.
    gradient     whether the value's gradient gets the same annotation; or the kind of the one that it gets,
                 with the same arguments.
    again        a kind without arguments: the backward of a graph that `torch.compile` makes is to compute
                 the value again instead of keeping it, from its input annotated so. A kind whose rule is a
                 barrier keeps XLA from merging the two.
    fingerprint  a text that changes whenever the rule computes something else, for rules that are no
                 functions of a module's own (closures, partials): without one their programs are not
                 kept on disk.

    Raises `SettingError` for a name that is taken by another rule.

        >>> define_annotation("mine.scaled", lambda x, factor: x * factor, gradient=False)
        >>> annotate(torch.ones(2, device="pjrt"), "mine.scaled", 3)
        tensor([3., 3.], device='pjrt:0')
    """
    known = kinds.get(kind)
    if known is not None and known.rule is not rule:
        raise SettingError(f"There is an annotation of the kind `{kind}` already.", saw=repr(known))
    kinds[kind] = Kind(kind, rule, gradient, again)
    added.note_source(kind, rule, fingerprint)


def annotate(x: torch.Tensor, kind: str, *args: Any) -> torch.Tensor:
    """A tensor of the same values, shape and dtype, about which passes and XLA are told something.

    args   bools, integers, finite floats, text, None, and tuples or lists of these: part of the
           program's key.

    The result is another tensor for autograd, and no copy on the device. It works within `torch.compile` too.
    Raises `SettingError` for a kind that nobody has defined, `TypeError` for other arguments.

        >>> define_annotation("mine.name")
        >>> annotate(torch.ones(2, device="pjrt"), "mine.name", "activations", (0, 1))
        tensor([1., 1.], device='pjrt:0')
    """
    if kind not in kinds:
        raise SettingError(
            f"No annotation of the kind `{kind}` is defined.",
            expected=", ".join(sorted(kinds)) or None,
            hint="torch_pjrt.extend.define_annotation(kind, rule)",
        )
    return ANNOTATE(x, kind, repr(_plain(args)))


def annotation_of(node: Node) -> Annotation | None:
    """What the node says of its value, if it is one of `annotate`; None for others. For passes.

    >>> define_annotation("docs.name")
    >>> with recorded(lambda x: annotate(x, "docs.name", "input"), [torch.empty(3)]) as step:
    ...     [annotation_of(node) for node in graph_of(step.tape, step.outputs).nodes]
    [Annotation(kind='docs.name', args=('input',))]
    """
    if node.op is not ANNOTATE:
        return None
    _, kind, value = node.signature.args
    return Annotation(kind, ast.literal_eval(value))


def computed_again(operator: Any, args: Sequence[Any]) -> str | None:
    """`again` of the kind of an annotation, by its operator and its arguments; None for other operators.

    >>> define_annotation("docs.kept")
    >>> define_annotation("docs.cheap", again="docs.kept")
    >>> computed_again(torch.ops.torch_pjrt.annotate.default, (None, "docs.cheap", "()"))
    'docs.kept'
    """
    known = kinds.get(args[1]) if operator is ANNOTATE else None
    return None if known is None else known.again


def applied(x: Any, kind: str, value: str) -> Any:
    """What the node becomes: the kind's rule on a JAX array."""
    rule = kinds[kind].rule
    return x if rule is None else rule(x, *ast.literal_eval(value))


def _plain(x: Any) -> Any:
    """`x` as a literal says it, lists as tuples."""
    if isinstance(x, (list, tuple)):
        return tuple(map(_plain, x))
    if x is None or type(x) in _PLAIN or (type(x) is float and x - x == 0):
        return x
    raise TypeError(
        f"an annotation takes numbers, text, None and tuples of them, not {type(x).__name__}: {x!r}"
    )


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    known = kinds.get(ctx.kind)
    if known is not None and known.gradient:
        kind = known.gradient if isinstance(known.gradient, str) else ctx.kind
        grad = ANNOTATE(grad, kind, ctx.value)
    return grad, None, None


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.kind, ctx.value = inputs[1:]


_library.impl("annotate", lambda self, kind, value: self.clone(), "CPU")
_library.impl("annotate", lambda self, kind, value: torch.empty_like(self), "Meta")
torch.library.register_autograd(
    "torch_pjrt::annotate", _backward, setup_context=_keep, lib=_library
)
