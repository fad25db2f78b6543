"""The transformations of `torch.func` give on the device what they give on the CPU, in any nesting.

By default `linearize` meets every function and other transformations meet a few; all meet all with
`TORCH_PJRT_TEST_ALL_INPUTS=1`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import func, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from quickly import compiled_quickly  # noqa: F401  all tests here
from sides import Case, Tolerance, difference, on_both

EVERYTHING = os.environ.get("TORCH_PJRT_TEST_ALL_INPUTS") == "1"
FUSED = Tolerance(1e-9, 1e-9, "float64; products and sums in another order")
Function = Callable[[torch.Tensor], Any]


def _assigned(a: torch.Tensor) -> torch.Tensor:
    copy = a.clone()
    copy[:1] = a[1:2].cos()
    return copy


def _added(a: torch.Tensor) -> torch.Tensor:
    positions = torch.zeros(len(a), dtype=torch.long, device=a.device)
    return torch.zeros_like(a).index_add(0, positions, a)


def _solved(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(a.mT @ a + 3 * torch.eye(3, dtype=a.dtype, device=a.device))


def _convolved(a: torch.Tensor) -> torch.Tensor:
    return F.conv1d(a[None], torch.ones(2, len(a), 2, dtype=a.dtype, device=a.device))


# Of a matrix of 4 rows and 3 columns.
FUNCTIONS: dict[str, Function] = {
    "sin": torch.sin,
    "product with a column": lambda a: a * a[:, :1],
    "views": lambda a: (a.reshape(-1) * 2).view(a.shape),
    "slices": lambda a: a[1:] * a[:-1],
    "a transposed matrix": lambda a: a.mT.contiguous() @ a,
    "in place": lambda a: a.clone().mul_(2).add_(a),
    "an assigned slice": _assigned,
    "softmax": lambda a: a.softmax(-1).log(),
    "a sum": lambda a: (a**3).sum(),
    "a mean": lambda a: a.exp().mean(0),
    "where": lambda a: torch.where(a > 0, a, a * a),
    "cumsum": lambda a: a.cumsum(0) * a,
    "layer norm": lambda a: F.layer_norm(a, (3,)),
    "a convolution": _convolved,
    "indices": lambda a: a[torch.tensor([0, 1, 0], device=a.device)] ** 2,
    "stack": lambda a: torch.stack([a, a * 2]).prod(0),
    "sort": lambda a: a.sort(0)[0] * a,
    "einsum": lambda a: torch.einsum("ij,kj->ik", a, a),
    "an inverse": _solved,
    "attention": lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]),
    "fft": lambda a: torch.fft.fft(a).abs(),
    "pad and roll": lambda a: F.pad(a, (1, 1)).roll(1, 0),
    "max": lambda a: a.max(0)[0],
    "expand": lambda a: a[None].expand(2, *a.shape) * a,
    "diagonal": lambda a: torch.diagonal(a) * 2,
    "constants": lambda a: a.new_ones(3) + a.sum() * 0,
    "two results": lambda a: (a.sin(), a.sum()),
    "index_add": _added,
    "gelu": F.gelu,
    "logsumexp": lambda a: a.logsumexp(1),
    "unbind": lambda a: sum(a.unbind(0)),
}
BY_DEFAULT = ("views", "an assigned slice", "attention", "two results")


def _first(f: Function) -> Function:
    return lambda a: tree_leaves(f(a))[0]


def _total(f: Function) -> Function:
    return lambda a: _first(f)(a).sum()


def _tangent(x: torch.Tensor) -> torch.Tensor:
    values = torch.cos(torch.arange(x.numel(), dtype=x.dtype))
    return values.reshape(x.shape).to(x.device)


def _batch(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x + 1])


def _pulled_back(f: Function, x: torch.Tensor, like: Function = _tangent) -> Any:
    output, pull = func.vjp(f, x)[:2]
    return pull(tree_map(like, output))


def _with_ones(f: Function, x: torch.Tensor) -> Any:
    return func.jvp(f, (x,), (torch.ones_like(x),))


def _forward_ad(f: Function, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(_first(f)(forward_ad.make_dual(x, _tangent(x))))


def _traced(f: Function, x: torch.Tensor, mode: Any = "real") -> Any:
    return make_fx(f, tracing_mode=mode, _allow_non_fake_inputs=True)(x)(x + 1)


TRANSFORMATIONS: dict[str, Callable[[Function, torch.Tensor], Any]] = {
    "linearize": lambda f, x: func.linearize(f, x)[1](_tangent(x)),
    "jvp": lambda f, x: func.jvp(f, (x,), (_tangent(x),)),
    "vjp": _pulled_back,
    "jacrev": lambda f, x: func.jacrev(f)(x),
    "jacrev in chunks": lambda f, x: func.jacrev(_first(f), chunk_size=2)(x),
    "jacfwd": lambda f, x: func.jacfwd(f)(x),
    "hessian": lambda f, x: func.hessian(_total(f))(x),
    "grad": lambda f, x: func.grad(_total(f))(x),
    "grad_and_value": lambda f, x: func.grad_and_value(_total(f))(x),
    "grad of grad": lambda f, x: func.grad(lambda a: func.grad(_total(f))(a).pow(2).sum())(x),
    "vmap": lambda f, x: func.vmap(f)(_batch(x)),
    "vmap in chunks": lambda f, x: func.vmap(f, chunk_size=1)(_batch(x)),
    "vmap of grad": lambda f, x: func.vmap(func.grad(_total(f)))(_batch(x)),
    "vmap of jvp": lambda f, x: func.vmap(lambda y: _with_ones(f, y))(_batch(x)),
    "vmap of vjp": lambda f, x: func.vmap(lambda y: _pulled_back(f, y, torch.ones_like))(_batch(x)),
    "jvp of vmap": lambda f, x: _with_ones(func.vmap(f), _batch(x)),
    "jvp of jvp": lambda f, x: _with_ones(lambda y: _with_ones(f, y)[1], x),
    "linearize of grad": lambda f, x: func.linearize(func.grad(_total(f)), x)[1](_tangent(x)),
    "forward AD": _forward_ad,
    "functionalize": lambda f, x: func.functionalize(f)(x),
    "functionalize, views too": lambda f, x: func.functionalize(
        f, remove="mutations_and_views"
    )(x),
    "make_fx": _traced,
    "make_fx with fake tensors": partial(_traced, mode="fake"),
    "make_fx with symbolic sizes": partial(_traced, mode="symbolic"),
    "make_fx of grad": lambda f, x: _traced(func.grad(_total(f)), x),
    "make_fx of vmap": lambda f, x: _traced(func.vmap(f), _batch(x)),
    "make_fx of functionalize": lambda f, x: _traced(func.functionalize(f), x),
}  # fmt: skip


def _case(transformation: str, function: str) -> Case:
    def work(device: str) -> dict[str, Any]:
        x = torch.sin(1.7 * torch.arange(12, dtype=torch.float64)).reshape(4, 3).to(device)
        return {"result": TRANSFORMATIONS[transformation](FUNCTIONS[function], x)}

    return on_both(function, work, FUSED)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_a_transformation_gives_what_it_gives_on_the_cpu(transformation: str) -> None:
    chosen = FUNCTIONS if EVERYTHING or transformation == "linearize" else BY_DEFAULT
    cases = [_case(transformation, function) for function in chosen]

    assert not [case for case in cases if case.cpu.error is not None]
    found = [f"{case.name}: {line}" for case in cases if (line := difference(case))]
    assert not found, "\n".join(found)


def _ensemble(device: str) -> dict[str, Any]:
    """Gradients of three models at once, by way of one without parameters of its own."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device) for _ in range(3)]
    parameters, buffers = func.stack_module_state(models)
    x = torch.sin(torch.arange(15.0)).reshape(5, 3).to(device)

    def loss(p: Any, b: Any) -> torch.Tensor:
        return func.functional_call(models[0].eval(), (p, b), (x,)).square().mean()

    gradients, losses = func.vmap(func.grad_and_value(loss))(parameters, buffers)
    pushed = func.linearize(lambda p: func.vmap(loss)(p, buffers), parameters)[1](parameters)
    return {"losses": losses, "gradients": gradients, "pushed": pushed}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
def test_an_ensemble_of_modules_gives_what_it_gives_on_the_cpu() -> None:
    case = on_both("ensemble", _ensemble)

    assert case.cpu.error is None
    assert difference(case) is None


# Of a matrix of 4 rows and 3 columns: 4 time steps, or a batch of 4.
RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "GRU": lambda: nn.GRU(3, 2),
    "GRU of two layers, both ways": lambda: nn.GRU(3, 2, 2, bidirectional=True),
    "GRU without biases": lambda: nn.GRU(3, 2, bias=False),
    "LSTM": lambda: nn.LSTM(3, 2),
    "LSTM with projections": lambda: nn.LSTM(3, 4, proj_size=2),
    "RNN": lambda: nn.RNN(3, 2),
    "GRUCell": lambda: nn.GRUCell(3, 2),
    "LSTMCell": lambda: nn.LSTMCell(3, 2),
    "LSTMCell without biases": lambda: nn.LSTMCell(3, 2, bias=False),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_tangents_go_through_recurrent_layers_as_on_the_cpu(name: str) -> None:
    def tangents(device: str) -> dict[str, Any]:
        torch.manual_seed(0)
        module = RECURRENT[name]().double().to(device)
        x = torch.sin(1.7 * torch.arange(12, dtype=torch.float64)).reshape(4, 3).to(device)
        packed = nn.utils.rnn.pack_sequence([x, x[:2]])

        def of_packed(x: torch.Tensor) -> Any:
            return module(packed._replace(data=x))[0].data

        pushed = {
            way: TRANSFORMATIONS[way](module, x) for way in ("jvp", "forward AD", "jvp of jvp")
        }
        if not isinstance(module, nn.RNNCellBase):  # whose jvp the CPU has not
            pushed["packed"] = TRANSFORMATIONS["forward AD"](of_packed, packed.data)
        return pushed

    case = on_both(name, tangents, FUSED)

    assert case.cpu.error is None
    assert difference(case) is None


# fmt: off
BINARY = (
    "add", "sub", "rsub", "mul", "div", "pow", "atan2", "hypot", "maximum", "minimum", "fmax", "fmin",
    "fmod", "remainder", "copysign", "xlogy", "heaviside", "floor_divide", "dot", "outer", "kron",
    "dist", "ldexp",
)
# fmt: on
#   with a tensor that is not differentiated, in each place
WITH_OTHERS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in BINARY},
    "addcmul": lambda x, other: torch.addcmul(x, x, other),
    "addcmul of others": lambda x, other: torch.addcmul(other, x, x),
    "addcdiv": lambda x, other: torch.addcdiv(x, x, other),
    "addcdiv of others": lambda x, other: torch.addcdiv(x, other, x),
    "where": lambda x, other: torch.where(x > 1, x, other),
    "mm": lambda x, other: x.expand(3, 3) @ other.expand(3, 3),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", WITH_OTHERS)
def test_a_tangent_meets_inputs_of_bools_and_integers_as_on_the_cpu(name: str) -> None:
    """Values, dtypes, and what is refused; the other tensor first, and last."""
    call = WITH_OTHERS[name]

    def tangent(device: str, dtype: torch.dtype, is_first: bool) -> Any:
        x = torch.tensor([1.5, 2.0, 0.5]).to(device)
        other = torch.ones(3, dtype=dtype).to(device)
        try:
            return func.jvp(lambda x: call(other, x) if is_first else call(x, other), (x,), (x,))
        except (RuntimeError, NotImplementedError) as error:
            return type(error)

    for dtype in (torch.bool, torch.uint8, torch.int64):
        for is_first in (False, True):
            ours, theirs = (tangent(device, dtype, is_first) for device in ("pjrt", "cpu"))
            if isinstance(theirs, tuple):
                torch.testing.assert_close([y.cpu() for y in ours], list(theirs))
            else:
                assert ours == theirs
