"""Graphs with gradients are recorded as Dynamo traced them, and do what they do without a compiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_pjrt_dynamo
import warm
from torch_pjrt.extend import graph_of, state, value_of

# Of a parameter, a tensor that has no gradient, and one that some way of autograd has made.
Program = Callable[[Tensor, Tensor, Tensor], Any]


def switches(w: Tensor, x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        scale = (w * 2).sum()
    return w * scale, scale


def writes_to_what_it_made(w: Tensor, x: Tensor, y: Tensor) -> Any:
    z = w * x
    z[0] = y[1]
    z[:, 1].mul_(2)
    return z.relu_()


def writes_to_an_argument(w: Tensor, x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(0.9).add_(w, alpha=0.1)
    return (w * y).sum(), (w.detach() + x).mean()


def attention(w: Tensor, x: Tensor, y: Tensor) -> Any:
    q, k, v = (t.reshape(1, 1, 3, 3) for t in (w, x, y))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def normalizes(w: Tensor, x: Tensor, y: Tensor) -> Any:
    return F.layer_norm(w * x, (3,), y[0]), F.batch_norm(y, None, None, w[0], w[1], training=True)


def runs_statistics(w: Tensor, x: Tensor, y: Tensor) -> Any:
    mean, var = x[0].clone(), x[1].abs()
    return F.batch_norm(y * w, mean, var, training=True), mean, var


def convolves(w: Tensor, x: Tensor, y: Tensor) -> Any:
    kernel = w.reshape(1, 1, 3, 3)
    return F.max_pool2d(F.conv2d(F.pad(y, (1, 1, 1, 1))[None, None], kernel), 2)


def embeds(w: Tensor, x: Tensor, y: Tensor) -> Any:
    tokens = torch.arange(3, device=x.device)
    return F.cross_entropy(F.embedding(tokens, w) @ y, tokens.flip(0))


DIRECT: dict[str, Program] = {
    "an argument": lambda w, x, y: (w * 2, x, y),
    "a product": lambda w, x, y: torch.einsum("ij,jk->ki", w, y),
    "a view of what it made": lambda w, x, y: (w * x).t(),
    "a part of what it made": lambda w, x, y: (w * x)[1:, ::2],
    "what is expanded": lambda w, x, y: (w.sum(0, keepdim=True) * 2).expand(3, 3),
    "an argument without a gradient": lambda w, x, y: (w.exp() * y, x + 1),
    "an argument that nothing reads": lambda w, x, y: y.sin() * x,
    "a gradient of both": lambda w, x, y: w + y,
    "the same twice": lambda w, x, y: w * w + y.t() @ w,
    "no tensor": lambda w, x, y: (None, w * 2, 3, "a"),
    "another dtype": lambda w, x, y: ((w * y).to(torch.bfloat16), w.double().sum()),
    "choices": lambda w, x, y: (torch.where(x > 0, w, y), y.clamp(min=0), w.max(0).values),
    "sorts": lambda w, x, y: (w.sort(-1).values, (w * y).topk(2)),
    "dropout of nothing": lambda w, x, y: F.dropout(w * x, 0.0) + F.gelu(y),
    "sums": lambda w, x, y: (w.cumsum(0), y.logsumexp(1), (w * y).norm(), F.softmax(y, -1)),
    "joins": lambda w, x, y: torch.cat([w, x, y]).chunk(3)[1] + torch.stack([w, y]).sum(0),
    "a constant": lambda w, x, y: w * torch.linspace(0, 1, 3, device=w.device),
    **{
        f.__name__: f
        for f in (
            *(switches, writes_to_what_it_made, writes_to_an_argument, attention, normalizes),
            *(runs_statistics, convolves, embeds),
        )
    },
}


class Doubled(torch.autograd.Function):
    """A user's own gradient: three times what it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 6


TRACED: dict[str, Program] = {
    "a view of an argument": lambda w, x, y: (w.t(), w * 2),
    "results in one storage": lambda w, x, y: (w * 2).chunk(3),
    "a result without its gradient": lambda w, x, y: ((z := w * 2), z.detach()),
    "a write with a gradient": lambda w, x, y: x.copy_(w * 2),
    "a write to what has one": lambda w, x, y: y.mul_(2).sum() * w,
    "complex numbers": lambda w, x, y: torch.complex(w, x).abs(),
    "control flow": lambda w, x, y: torch.cond(x.sum() > 0, torch.sin, torch.cos, (w,)),
    "a tensor on the host": lambda w, x, y: ((w * 2).cpu() + 1).to(w.device),
    "a checkpoint": lambda w, x, y: checkpoint(torch.tanh, w * 2, use_reentrant=False),
    "a user's own gradient": lambda w, x, y: Doubled.apply(w),
}
WITHIN = {
    "hooks of saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x * 2, lambda x: x / 2
    ),
    "anomalies": torch.autograd.detect_anomaly,
    "autocast": lambda: torch.autocast("pjrt", torch.bfloat16),
}


def outcome(program: Program) -> list[Any]:
    """Whatever can be seen of the arguments, results and gradients: also who shares memory with whom."""
    values = torch.linspace(-1, 1, 9).reshape(3, 3)
    w = nn.Parameter(values.clone().to("pjrt"))
    x = (values.flip(0) + 0.1).to("pjrt")
    source = (values.t() * 3 + 0.05).contiguous().to("pjrt").requires_grad_()
    y = source.sin() + 0
    results = program(w, x, y)
    results = list(results) if isinstance(results, tuple | list) else [results]
    results = [leaf for r in results for leaf in (r if isinstance(r, tuple) else (r,))]
    tensors = [w, x, y, *(r for r in results if isinstance(r, Tensor))]
    seen = [(t.shape, t.dtype, t.stride(), t.requires_grad, t.is_leaf, type(t)) for t in tensors]
    storages = [t.untyped_storage()._cdata for t in tensors]
    shared = [[a == b for b in storages] for a in storages]
    others = [r for r in results if not isinstance(r, Tensor)]
    # Of each result another gradient; the second result that has one gets none at all.
    differ = [t for t in tensors[3:] if t.requires_grad]
    differ = [t for i, t in enumerate(differ) if i != 1 or len(differ) == 2]
    weights = [torch.linspace(i + 1, 0, t.numel()).reshape(t.shape) for i, t in enumerate(differ)]
    torch.autograd.backward(
        differ, [v.to("pjrt", t.dtype) for v, t in zip(weights, differ, strict=True)]
    )
    grads = [w.grad, source.grad]
    seen += [None if g is None else (g.shape, g.dtype, g.stride()) for g in grads]
    found = [t.detach().cpu().double() for t in (*tensors, *(g for g in grads if g is not None))]
    return [found, seen, shared, others]


@pytest.mark.parametrize("name", DIRECT)
def test_a_call_and_its_backward_do_what_they_do_without_a_compiler(
    name: str, ways: list[str]
) -> None:
    program = DIRECT[name]
    compiled = torch.compile(program, backend="pjrt", fullgraph=True)
    (values, *expected) = outcome(program)

    for _ in range(2):
        got, *rest = outcome(compiled)
        torch.testing.assert_close(got, values, rtol=1e-6, atol=1e-6)
        assert rest == expected
    assert ways == ["with gradients"]


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")
@pytest.mark.parametrize("name", TRACED)
def test_what_is_not_so_simple_is_traced_by_aotautograd(name: str, ways: list[str]) -> None:
    program = TRACED[name]
    compiled = torch.compile(program, backend="pjrt")
    (values, seen, *_) = outcome(program)

    got, looks, *_ = outcome(compiled)

    torch.testing.assert_close(got, values, rtol=1e-6, atol=1e-6)
    assert [x and x[:2] for x in looks] == [x and x[:2] for x in seen]
    assert ways
    assert set(ways) == {"AOTAutograd"}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", WITHIN)
def test_who_looks_at_autograd_has_aotautograd(name: str, ways: list[str]) -> None:
    weight = nn.Parameter(torch.ones(3, 3, device="pjrt"))
    compiled = torch.compile(lambda x: (weight @ x).tanh().sum(), backend="pjrt")

    with WITHIN[name]():
        compiled(torch.ones(3, 3, device="pjrt")).backward()

    assert weight.grad is not None
    assert weight.grad.isfinite().all()
    assert ways == ["AOTAutograd"]


def test_random_numbers_are_those_without_a_compiler() -> None:
    weight = nn.Parameter(torch.linspace(1, 2, 64).to("pjrt"))

    def noisy(x: Tensor) -> Tensor:
        return F.dropout(weight * x) + torch.rand_like(x) * weight

    compiled = torch.compile(noisy, backend="pjrt")
    found = []
    for run in (noisy, compiled, compiled):
        torch.manual_seed(3)
        weight.grad = None
        for _ in range(3):
            y = run(torch.ones(64, device="pjrt"))
            y.sum().backward()
        assert weight.grad is not None
        found.append((y.tolist(), weight.grad.tolist()))
    assert found[1] == found[0] == found[2]


@pytest.mark.parametrize("name", ["a product", "a view of what it made", "a part of what it made"])
def test_results_may_be_written_to(name: str) -> None:
    def written(program: Program) -> Any:
        w, x, y = (torch.linspace(1, n, 9).reshape(3, 3).to("pjrt") for n in (2, 3, 4))
        w.requires_grad_()
        y = program(w, x, y)
        y.mul_(3)
        y.sum().backward()
        assert w.grad is not None
        return y.tolist(), w.grad.tolist()

    assert written(torch.compile(DIRECT[name], backend="pjrt")) == written(DIRECT[name])


def test_a_parameter_may_be_frozen_between_two_calls() -> None:
    weights = [nn.Parameter(torch.ones(3, device="pjrt")) for _ in range(2)]
    for w in weights:  # as compiled optimizers do
        torch._dynamo.mark_static_address(w, guard=True)
    compiled = torch.compile(lambda x: weights[0] * x + weights[1], backend="pjrt")
    x = torch.ones(3, device="pjrt")
    found = []
    for frozen in ((), (0,), (0, 1), (1,), ()):
        for i, w in enumerate(weights):
            w.grad = None
            w.requires_grad_(i not in frozen)
        y = compiled(x)
        if y.requires_grad:
            y.sum().backward()
        found.append([i for i, w in enumerate(weights) if w.grad is None])
    assert found == [[], [0], [0, 1], [1], []]


def test_other_strides_are_recorded_anew() -> None:
    weight = nn.Parameter(torch.ones(3, device="pjrt"))
    compiled = torch.compile(lambda x: x * weight, backend="pjrt", dynamic=False)
    for x in (torch.ones(2, 3, device="pjrt"), torch.ones(3, 2, device="pjrt").t()):
        y = compiled(x)
        y.sum().backward()
        assert y.stride() == (x * weight).stride()
    assert weight.grad is not None
    assert weight.grad.tolist() == [4.0] * 3


def test_an_argument_that_is_kept_must_not_be_written_to() -> None:
    weight = nn.Parameter(torch.ones(3, device="pjrt"))
    x = torch.ones(3, device="pjrt")
    y = torch.compile(lambda x: weight * x, backend="pjrt")(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backward_may_be_called_twice_but_not_be_differentiated() -> None:
    x = torch.linspace(1, 2, 3).to("pjrt").requires_grad_()
    y = torch.compile(lambda x: (x**3).sum(), backend="pjrt")(x)

    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (again,) = torch.autograd.grad(y, x, create_graph=True)

    assert first.tolist() == again.tolist()
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        again.sum().backward()


def test_hooks_of_tensors_see_gradients() -> None:
    weight = nn.Parameter(torch.ones(3, device="pjrt"))
    seen = []
    weight.register_hook(lambda g: seen.append(g.tolist()))
    y = torch.compile(lambda x: weight * x, backend="pjrt")(torch.ones(3, device="pjrt"))
    y.register_hook(lambda g: g * 2)

    y.sum().backward()

    assert seen == [[2.0] * 3]


def test_operators_of_backward_come_from_the_lines_of_forward() -> None:
    weight = nn.Parameter(torch.ones(3, 3, device="pjrt"))

    def model(x: Tensor) -> Tensor:
        y = weight @ x
        return y.tanh()

    first = model.__code__.co_firstlineno
    y = torch.compile(model, backend="pjrt")(torch.ones(3, 3, device="pjrt"))
    y.sum().backward()

    assert weight.grad is not None
    number = value_of(weight.grad).number
    graphs = [n.op.graph for n in graph_of(state.tape, [number]).nodes if hasattr(n.op, "graph")]
    lines = [
        (node.line.number - first, node.line.backward)
        for g in graphs
        for node in g.nodes
        if node.line
    ]
    assert {(1, False), (2, False), (1, True), (2, True)} <= set(lines)
    assert all(node.line for g in graphs for node in g.nodes)


def test_partitions_say_what_forward_keeps() -> None:
    x = torch.ones(4, 8, device="pjrt", requires_grad=True)
    torch.compile(lambda x: x.tanh().exp(), backend="pjrt")(x).sum().backward()

    found = torch_pjrt_dynamo.partitions()[-1]

    assert found.kept_bytes == 2 * 4 * 8 * 4
    assert "keeps 2 tensors" in str(found)
    assert "float32[4, 8]" in str(found)


def test_a_budget_of_memory_is_aotautograds(ways: list[str]) -> None:
    x = torch.ones(3, device="pjrt", requires_grad=True)
    options: dict[str, Any] = {"memory_budget": 0.5}
    compiled = torch.compile(lambda x: x.tanh().exp(), backend="pjrt", options=options)
    compiled(x).sum().backward()
    assert ways == ["AOTAutograd"]


STEP = """
import sys
import torch

model = torch.nn.Linear(3, 1).to("pjrt")
optimizer = torch.optim.AdamW(model.parameters())

def train(x):
    model(x).sum().backward()
    optimizer.step()

torch.compile(train, backend="pjrt")(torch.ones(2, 3, device="pjrt"))
print([name for name in sys.modules if name == "torch._inductor.compile_fx"])
print(torch._dynamo.utils.counters["aot_autograd"]["total"])
"""


def test_a_step_of_training_needs_neither_inductor_nor_aotautograd() -> None:
    run = warm.run(["-c", STEP], os.environ)
    assert run.stdout.split() == ["[]", "0"], run.stderr
