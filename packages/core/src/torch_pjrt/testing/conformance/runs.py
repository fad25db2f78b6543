"""What a kind of check does with a sample: the same function, called with two placements.

A *placement* is a device, or the CPU in double precision. A *run* takes a placement and returns all that must
be the same there: results, and facts such as "the result is `out`".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt.testing.conformance import cases
from torch_pjrt.testing.conformance.copies import Copier, in_double, on_device_named


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a run happens."""

    device: str
    double: bool = False

    def bring(self, sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of a sample's arguments here: positional and by name."""
        tree = ((sample.input, *sample.args), sample.kwargs)
        args, kwargs = Copier(self.device)(in_double(tree) if self.double else tree)
        if sample.name in _SECOND_STAYS_ON_CPU:
            args = (args[0], *sample.args)
        return args, on_device_named(kwargs, self.device)


# PyTorch wants these operators' second argument on the CPU, wherever the first is.
_SECOND_STAYS_ON_CPU = ("tensor_split",)

CPU, DOUBLE, META = Placement("cpu"), Placement("cpu", double=True), Placement("meta")


@dataclass(frozen=True, slots=True)
class Run:
    """One check of one sample."""

    label: str
    at: Callable[[Placement], Any]


def runs_of(case: cases.Case) -> Iterator[Run]:
    """The runs of a case, one or more for each sample of PyTorch's database."""
    info = cases.operators()[case.operator]
    torch.manual_seed(0)
    if case.kind == cases.ERROR:
        for i, error_input in enumerate(info.error_inputs("cpu")):
            yield Run(f"error {i}", _calling(info.op, error_input.sample_input))
        return
    wants_gradient = case.kind in (cases.GRADIENT, cases.SECOND)
    dtype = cases.DTYPES[case.dtype]
    samples = info.sample_inputs("cpu", dtype, requires_grad=wants_gradient)
    for i, sample in enumerate(samples):
        sample.name = info.name
        for suffix, at in _KINDS[case.kind](info, sample, i):
            yield Run(f"sample {i}{suffix}", at)


_Parts = Iterator[tuple[str, Callable[[Placement], Any]]]


def _calling(op: Any, sample: Any) -> Callable[[Placement], Any]:
    def at(placement: Placement) -> Any:
        args, kwargs = placement.bring(sample)
        return op(*args, **kwargs)

    return at


def _forward(info: Any, sample: Any, i: int) -> _Parts:
    yield "", _calling(info.op, sample)


# They choose among elements; which of equal ones they choose, and so which has the gradient, is not defined.
_CHOOSES = ("mode", "msort", "sort", "topk")


def _gradient(info: Any, sample: Any, i: int) -> _Parts:
    def at(placement: Placement) -> Any:
        inputs, _, gradients = _first_gradients(info, sample, placement, again=False)
        if info.name in _CHOOSES:
            return [_of_equals(g, x) for g, x in zip(gradients, inputs, strict=True)]
        return gradients

    yield "", at


def _second(info: Any, sample: Any, i: int) -> _Parts:
    def at(placement: Placement) -> Any:
        inputs, cotangents, first = _first_gradients(info, sample, placement, again=True)
        first = [g for g in first if g is not None and g.requires_grad]
        if not first:
            return []
        return _gradients(first, inputs + cotangents, [_cotangent(g) for g in first], again=False)

    yield "", at


def _first_gradients(
    info: Any, sample: Any, placement: Placement, *, again: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor | None]]:
    args, kwargs = placement.bring(sample)
    inputs = [x for x in tree_leaves((args, kwargs)) if _wants_gradient(x)]
    result = info.gradcheck_wrapper(info.op, *args, **kwargs)
    results = tree_leaves(sample.output_process_fn_grad(result))
    outputs = [x for x in results if _wants_gradient(x)]
    if not outputs:
        return inputs, [], []
    cotangents = [_cotangent(x).requires_grad_(again) for x in outputs]
    return inputs, cotangents, _gradients(outputs, inputs, cotangents, again=again)


def _gradients(
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    cotangents: list[torch.Tensor],
    *,
    again: bool,
) -> list[torch.Tensor | None]:
    return list(
        torch.autograd.grad(outputs, inputs, cotangents, create_graph=again, allow_unused=True)
    )


def _of_equals(gradient: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """The gradients of equal elements of `x` added up, one sum for each different element, in float64."""
    if gradient is None or gradient.shape != x.shape or gradient.dtype != x.dtype:
        return gradient
    different, placements = x.detach().cpu().double().unique(return_inverse=True)
    gradients = gradient.detach().cpu().double().flatten()
    return torch.zeros_like(different).index_add(0, placements.flatten(), gradients)


def _wants_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _cotangent(x: torch.Tensor) -> torch.Tensor:
    """Made-up gradients of `x`: eighths, which every floating dtype holds exactly."""
    generator = torch.Generator().manual_seed(x.ndim)

    def eighths() -> torch.Tensor:
        return torch.randint(-8, 9, x.shape, generator=generator).double() / 8

    values = torch.complex(eighths(), eighths()) if x.is_complex() else eighths()
    return values.to(x.dtype).to(x.device)


def _out(info: Any, sample: Any, i: int) -> _Parts:
    try:
        args, kwargs = CPU.bring(sample)
        made = info.op(*args, **kwargs)
    except Exception:
        return  # a sample of an error: `forward` compares it
    for name, prepare in _OUTS.items():
        if name == "its own shape" or i < _FULLY_CHECKED_OUTS:

            def at(placement: Placement, prepare: Callable[..., torch.Tensor] = prepare) -> Any:
                args, kwargs = placement.bring(sample)
                like = in_double(made) if placement.double else made
                out = Copier(placement.device)(tree_map(prepare, like))
                result = info.op(*args, **kwargs, out=out)
                pairs = list(zip(tree_leaves(result), tree_leaves(out), strict=True))
                return [r for r, _ in pairs], [r is o for r, o in pairs]

            yield f", out of {name}", at


# Beyond these samples of an operator, only an `out` of the right shape is tried.
_FULLY_CHECKED_OUTS = 4
_OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "its own shape": torch.ones_like,
    "no elements": lambda x: torch.empty(0, dtype=x.dtype),
    "other strides": lambda x: torch.ones(*x.shape, 2, dtype=x.dtype)[..., 0],
    "int64": lambda x: torch.ones(x.shape, dtype=torch.int64),
}


def _inplace(info: Any, sample: Any, i: int) -> _Parts:
    def at(placement: Placement) -> Any:
        args, kwargs = placement.bring(sample)
        before = args[0]._version
        result = info.inplace_variant(*args, **kwargs)
        return result, result is args[0], args[0]._version - before

    yield "", at


_KINDS: dict[str, Callable[[Any, Any, int], _Parts]] = {
    cases.FORWARD: _forward,
    cases.GRADIENT: _gradient,
    cases.SECOND: _second,
    cases.OUT: _out,
    cases.INPLACE: _inplace,
}
