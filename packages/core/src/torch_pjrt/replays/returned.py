"""What a captured step returns: a template that a replay fills with new tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.replays.observation import Observed, Result
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt, spec_and_offset, wrap_sized

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, slots=True)
class _Given:
    """The tensor at this position among the call's own."""

    position: int


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A new tensor: a result that lies in its storage as `base`, seen as `spec` from `offset` on."""

    result: Result
    base: TensorSpec
    spec: TensorSpec
    offset: int


@dataclass(frozen=True, slots=True)
class _Same:
    """A tensor that lives outside of the step, or a Python value."""

    x: Any


@dataclass(frozen=True, slots=True)
class Template:
    """The leaves of what was returned, and how they are put together."""

    leaves: tuple[_Given | _Fresh | _Same, ...]
    treespec: Any

    def filled(
        self, results: Sequence[Sequence[jax.Array]], tensors: Sequence[torch.Tensor]
    ) -> Any:
        """What a replay returns that gave these results, called with these tensors."""
        leaves = []
        for leaf in self.leaves:
            if isinstance(leaf, _Given):
                leaves.append(tensors[leaf.position])
            elif isinstance(leaf, _Fresh):
                array = results[leaf.result.launch][leaf.result.position]
                leaves.append(tensor_on(array, leaf.base, leaf.spec, leaf.offset))
            else:
                leaves.append(leaf.x)
        return pytree.tree_unflatten(leaves, self.treespec)


def template_of(
    returned: Any,
    seen: Observed,
    result_of: Callable[[torch.Tensor], Result | None],
    tensors: Sequence[torch.Tensor],
) -> Template:
    """The template of what a call returned; what it cannot hold becomes an objection."""
    leaves, treespec = pytree.tree_flatten(returned)
    positions = {id(t): i for i, t in enumerate(tensors)}
    return Template(tuple([_leaf(x, seen, result_of, positions) for x in leaves]), treespec)


def differences_of_templates(first: Template, second: Template) -> list[str]:
    """In words, why a replay of the second would not return what the first call did."""
    if first.treespec != second.treespec:
        return ["it returned another structure than the time before"]
    for a, b in zip(first.leaves, second.leaves, strict=True):
        if a.__class__ is not b.__class__:
            return ["it returned a new tensor once, and one that was there another time"]
        if isinstance(a, _Same) and isinstance(b, _Same):
            if isinstance(a.x, torch.Tensor) or isinstance(b.x, torch.Tensor):
                if not _is_one_memory(a.x, b.x):
                    return ["it returned another tensor than the time before"]
            elif a.x != b.x:
                return [f"it returned {a.x!r}, then {b.x!r}, which are no tensors"]
        elif a != b:
            return ["it returned other results than the time before"]
    return []


def _is_one_memory(x: Any, y: Any) -> bool:
    both = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return both and buffer_of(x) is buffer_of(y) and spec_and_offset(x) == spec_and_offset(y)


def _leaf(
    x: Any,
    seen: Observed,
    result_of: Callable[[torch.Tensor], Result | None],
    positions: dict[int, int],
) -> _Given | _Fresh | _Same:
    if not isinstance(x, torch.Tensor):
        return _Same(x)
    if id(x) in positions:
        return _Given(positions[id(x)])
    if not is_pjrt(x):
        seen.objections.append(
            f"it returns a tensor on {x.device}: only its Python could make that"
        )
        return _Same(x)
    result = result_of(x)
    if result is None or result in seen.writes:
        return _Same(x.detach())
    buffer = buffer_of(x)
    spec, offset = spec_and_offset(x)
    if spec.dtype != buffer.spec.dtype or x.is_conj() or x.is_neg():
        seen.objections.append("it returns a view of another dtype: return a clone of it")
    return _Fresh(result, buffer.spec, spec, offset)


def tensor_on(array: jax.Array, base: TensorSpec, spec: TensorSpec, offset: int) -> torch.Tensor:
    """A new tensor that looks like `spec` from `offset` on, on an array that lies in memory as `base`."""
    tensor = wrap_sized(Value.of_array(base, array), base)
    if spec is base and not offset:
        return tensor
    return tensor.as_strided(spec.shape, spec.strides, offset)
