"""`linear` and its backward are one call each, and nobody can tell but by the time they take."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

import torch_pjrt
from as_on_cpu import assert_as_on_cpu, outcome
from fixture_types import Count
from torch_pjrt.graph.tape import state
from torch_pjrt.observe.lines import noted
from torch_pjrt.tensor.kernels import linear as kernels

Tensor = torch.Tensor


def whole(*shape: int, seed: int = 0) -> Tensor:
    """Small whole numbers: all sums are exact, in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).float()


INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x[0, 0],
    "three dims": lambda x: x[0],
    "four dims": lambda x: x,
    "one row": lambda x: x[0, 0, :1],
    "no row": lambda x: x[:, :0],
    "transposed": lambda x: x.transpose(1, 2),
    "a part": lambda x: x[:, 1:],
    "every second": lambda x: x[:, :, ::2],
    "expanded": lambda x: x[0, :1].expand(3, 4, 4),
    "expanded rows": lambda x: x[0, 0, :1].expand(5, 4),
    "in columns": lambda x: x[0, 0].t().contiguous().t(),
    "a vector": lambda x: x[0, 0, 0],
}
WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as usual": lambda w: w,
    "in columns": lambda w: w.t().contiguous().t(),
    "a part": lambda w: w[1:4],
    "of no class": lambda w: w[:0],
    "a vector": lambda w: w[0],
}
GRADIENTS = tuple(itertools.product((True, False), repeat=3))


def composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on calls go to PyTorch's composition."""
    monkeypatch.setattr(kernels, "_PLAIN", frozenset())


@pytest.mark.parametrize(
    ("w_name", "bias"),
    [(w, b) for w in WEIGHTS for b in (True, False) if not (b and w == "a vector")],
)
def test_results_gradients_and_strides_are_those_of_the_composition(
    w_name: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def action(device: str) -> object:
        found: list[object] = []
        for x_name, wanted in itertools.product(INPUTS, GRADIENTS):
            leaves = [whole(2, 3, 4, 4), whole(5, 4, seed=1), whole(5, seed=2)]
            leaves = [x.to(device).requires_grad_(g) for x, g in zip(leaves, wanted, strict=True)]
            x, w = INPUTS[x_name](leaves[0]), WEIGHTS[w_name](leaves[1])
            b = leaves[2][: w.shape[0]]
            for _ in range(2):  # learned, and by the template
                y = F.linear(x, w, b if bias else None)
                if y.requires_grad:
                    (y * y).sum().backward()
            found += [y.detach(), y.requires_grad, *(leaf.grad for leaf in leaves)]
        return found

    at_once = outcome(action, "pjrt")
    composed(monkeypatch)
    expected = outcome(action, "pjrt")

    assert len(at_once) == len(INPUTS) * len(GRADIENTS) * 5
    for ours, theirs in zip(at_once, expected, strict=True):
        for told in (ours, theirs):
            if isinstance(told, dict):
                del told["version"]  # the composition adds a bias in place, or not
        assert ours == theirs


REFUSED: dict[str, Callable[[str], object]] = {
    "other widths": lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(5, 4, device=d)),
    "other dtypes": lambda d: F.linear(
        torch.ones(2, 3, device=d), torch.ones(5, 3, device=d).double()
    ),
    "a bias of another width": lambda d: F.linear(
        torch.ones(2, 3, device=d), torch.ones(5, 3, device=d), torch.ones(4, device=d)
    ),
    "a weight of three dims": lambda d: F.linear(
        torch.ones(2, 3, device=d), torch.ones(1, 5, 3, device=d)
    ),
    "whole numbers and floats": lambda d: F.linear(
        torch.ones(2, 3, device=d).long(), torch.ones(5, 3, device=d)
    ),
    "a bias of another dtype": lambda d: F.linear(
        torch.ones(2, 3, device=d), torch.ones(5, 3, device=d), torch.ones(5, device=d).bfloat16()
    ),
}
TAKEN: dict[str, Callable[[str], object]] = {
    "one bias for all": lambda d: F.linear(
        whole(2, 3).to(d), whole(5, 3).to(d), torch.ones(1, device=d)
    ),
    "a bias for each row": lambda d: F.linear(
        whole(2, 3).to(d), whole(5, 3).to(d), whole(2, 5, seed=1).to(d)
    ),
    "whole numbers": lambda d: F.linear(whole(2, 3).to(d).long(), whole(5, 3).to(d).long()),
    "complex numbers": lambda d: F.linear(
        torch.complex(whole(2, 3), whole(2, 3, seed=1)).to(d).conj(),
        torch.complex(whole(5, 3), whole(5, 3, seed=1)).to(d),
    ),
    "a sparse weight": lambda d: F.linear(
        whole(2, 3).to(d), whole(5, 3).to(d).to_sparse()
    ).contiguous(),
    "in inference mode": lambda d: torch.inference_mode()(F.linear)(
        whole(2, 3).to(d), whole(5, 3).to(d)
    ),
    "written into": lambda d: torch.ops.aten.linear.out(
        whole(2, 3).to(d), whole(5, 3).to(d), out=torch.empty(2, 5, device=d)
    ),
    "changed in place": lambda d: F.linear(whole(2, 2, 3).to(d), whole(5, 3).to(d)).mul_(2)[0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", (*REFUSED, *TAKEN))
def test_other_calls_are_as_on_the_cpu(name: str) -> None:
    call = {**REFUSED, **TAKEN}[name]

    for _ in range(2):
        assert_as_on_cpu(call)


def leaves(device: str) -> tuple[Tensor, ...]:
    given = whole(2, 3, 4), whole(5, 4, seed=1), whole(5, seed=2)
    return tuple(x.to(device).requires_grad_() for x in given)


def cubed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b).pow(3)


def summed(*args: Tensor) -> Tensor:
    return cubed(*args).sum()


def _twice(*args: Tensor) -> Any:
    first = torch.autograd.grad(summed(*args), args, create_graph=True)
    return torch.autograd.grad([g.pow(2).sum() for g in first], args, create_graph=True)


def _thrice(*args: Tensor) -> Any:
    return torch.autograd.grad([g.sum() for g in _twice(*args)], args)


def _forward_over_reverse(*args: Tensor) -> Any:
    y = cubed(*args)
    with forward_ad.dual_level():
        seed = forward_ad.make_dual(torch.ones_like(y), torch.full_like(y, 2))
        return [forward_ad.unpack_dual(g) for g in torch.autograd.grad(y, args, seed)]


def _of_samples(*args: Tensor) -> Any:
    gradients = torch.func.grad(summed, (0, 1, 2))
    return torch.vmap(gradients, (0, None, None))(*args)


def _batched(*args: Tensor) -> Any:
    y = cubed(*args)
    seeds = torch.stack([torch.ones_like(y), torch.full_like(y, 2)])
    return torch.autograd.grad(y, args, seeds, is_grads_batched=True)


DIFFERENTIATED: dict[str, Callable[..., Any]] = {
    "twice": _twice,
    "three times": _thrice,
    "forward": lambda *args: torch.func.jvp(cubed, args, args),
    "forward over reverse": _forward_over_reverse,
    "each sample's gradients": _of_samples,
    "several gradients at once": _batched,
    "hessian": torch.func.hessian(summed, (0, 1, 2)),
    "hessian of vectors": lambda *args: torch.autograd.functional.hessian(
        summed, args, vectorize=True
    ),
    "jacobian": torch.func.jacrev(cubed, (0, 1, 2)),
    "gradients of gradients": torch.func.jacrev(torch.func.grad(summed, (0, 1)), (0, 1)),
    "gradients within a gradient": lambda x, w, b: torch.autograd.grad(
        [g.square().sum() for g in torch.func.grad(summed, (0, 1))(x, w, b)], (x, w, b)
    ),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_of_each_kind_are_those_of_the_cpu(name: str) -> None:
    def action(device: str) -> object:
        with warnings.catch_warnings():  # PyTorch says once that `torch.jit.script` is old
            warnings.simplefilter("ignore")
            found = tree_leaves(DIFFERENTIATED[name](*leaves(device)))
        # New tensors: their versions are 0, and their zeros have no sign.
        return [x.detach() + 1 for x in found]

    assert_as_on_cpu(action)


def test_gradients_of_several_at_once_are_one_pass() -> None:
    seen = Operators()

    with seen:
        _batched(*leaves("pjrt"))

    assert seen.names.count("mm") == 2


class Operators(TorchDispatchMode):
    """The names of the operators that a mode is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _shown(device: str) -> list[str]:
    given = leaves(device)
    with Operators() as seen:
        summed(*given).backward()
    return seen.names


def _shown_of_backward(device: str) -> list[str]:
    y = summed(*leaves(device))
    with Operators() as seen:
        y.backward()
    return [name for name in seen.names if name in ("mm", "sum", "linear_backward")]


def _operations(device: str) -> dict[str, Any]:
    given = leaves(device)
    with FlopCounterMode(display=False) as counted:
        summed(*given).backward()
    return {str(op): n for op, n in counted.get_flop_counts()["Global"].items()}


def test_modes_are_shown_what_they_are_on_the_cpu() -> None:
    assert _shown("pjrt") == _shown("cpu")
    assert sorted(_shown_of_backward("pjrt")) == sorted(_shown_of_backward("cpu"))
    assert _operations("pjrt") == _operations("cpu")


@pytest.mark.filterwarnings("ignore:`isinstance")
def test_exported_programs_decompose_it_as_on_the_cpu() -> None:
    def operators(device: str) -> list[str]:
        module = torch.nn.Linear(3, 2).to(device)
        program = torch.export.export(module, (torch.ones(1, 3, device=device),))
        simple = program.run_decompositions()
        return [
            str(n.target)
            for p in (program, simple)
            for n in p.graph.nodes
            if n.op == "call_function"
        ]

    assert operators("pjrt") == operators("cpu")


@pytest.mark.parametrize("policy", (None, torch.ops.aten.addmm.default), ids=("all", "products"))
def test_within_checkpoints(policy: Any) -> None:
    def action(device: str) -> object:
        given = leaves(device)
        options: dict[str, Any] = {}
        if policy is not None:
            kept = lambda *_: create_selective_checkpoint_contexts(  # noqa: E731
                lambda _, op, *a, **k: (
                    CheckpointPolicy.MUST_SAVE
                    if op is policy
                    else CheckpointPolicy.PREFER_RECOMPUTE
                )
            )
            options["context_fn"] = kept
        y = checkpoint(cubed, *given, use_reentrant=False, **options)
        y.sum().backward()
        return [x.grad for x in given]

    assert_as_on_cpu(action)


def _changed(device: str, what: int, needs: tuple[bool, bool]) -> object:
    x, w = whole(2, 4).to(device), whole(5, 4, seed=1).to(device)
    x, w = x.requires_grad_(needs[0]), w.requires_grad_(needs[1])
    y = F.linear(x, w)
    with torch.no_grad():
        (x, w)[what].mul_(2)
    y.sum().backward()
    return [x.grad, w.grad]


@pytest.mark.parametrize("needs", ((True, True), (True, False), (False, True)), ids=str)
@pytest.mark.parametrize("what", (0, 1), ids=("input", "weight"))
def test_what_backward_keeps_may_not_change_and_the_rest_may(
    what: int, needs: tuple[bool, bool]
) -> None:
    ours, theirs = (raised_or(lambda d=d: _changed(d, what, needs)) for d in ("pjrt", "cpu"))

    assert ours == theirs


def raised_or(action: Callable[[], object]) -> str:
    try:
        action()
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return "nothing"


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_within_autocast(dtype: torch.dtype) -> None:
    def action(device: str) -> object:
        given = leaves(device)
        with torch.autocast(device, dtype):
            y = F.linear(*given)
        y.sum().backward()
        return [y.detach(), [x.grad for x in given]]

    assert_as_on_cpu(action)


def _recorded(linear: Callable[..., Tensor]) -> list[str]:
    """The operators on the tape of a step, and the shapes of what they make."""
    given = leaves("pjrt")
    torch_pjrt.sync()
    gradients = torch.autograd.grad(linear(*given).relu().sum(), given)
    with noted("test"):
        tape = state.tape
        nodes = [str(item) for item in tape.code if not isinstance(item, int)]
    del gradients
    return nodes


def test_the_products_on_the_tape_are_those_of_the_composition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = _recorded(F.linear)
    composed(monkeypatch)
    simple = _recorded(F.linear)

    for name in ("mm", "addmm", "sum"):
        ours = [node for node in at_once if f"aten.{name}." in node or f"aten::{name}" in node]
        assert ours == [
            node for node in simple if f"aten.{name}." in node or f"aten::{name}" in node
        ]
    assert len(at_once) <= len(simple) + 2


def test_it_is_one_node_of_autograd_and_no_more_is_compiled(compiled: Count) -> None:
    given = leaves("pjrt")
    for _ in range(3):
        y = cubed(*given)
        y.sum().backward()
        torch_pjrt.sync()

    assert compiled() == 2  # the second step adds to the gradients of the first
    assert F.linear(*given).grad_fn.name() == "LinearBackward0"  # type: ignore[union-attr]


def test_a_size_that_values_decide() -> None:
    def action(device: str) -> object:
        x, w, b = leaves(device)
        rows = x.detach()[x.detach() > 0][:, None].expand(-1, 4).requires_grad_()
        y = F.linear(rows, w, b)
        y.sum().backward()
        return [y.detach(), w.grad, b.grad, rows.grad]

    assert_as_on_cpu(action)
