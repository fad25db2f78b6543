"""A thread that compiles changes nothing for others that do so at the same time, for a device or the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition, nop
from torch._functorch import partitioners
from torch._functorch.aot_autograd import aot_function
from torch._higher_order_ops import scan
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from hangs import HANGS_S
from torch_pjrt_dynamo import partition

Tensor = torch.Tensor


def dropped(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x.sin(), 0.5).cos()


def drawn(x: Tensor) -> Tensor:
    return torch.ops.aten.rand_like.default(x)


def looped(x: Tensor) -> Tensor:
    return scan(lambda c, y: (c + y, (c * y).sin()), x[0], x)[1]


def pjrt_gradient(function: Callable[[Tensor], Tensor], numbers: Tensor) -> tuple[Tensor, Tensor]:
    x = numbers.to("pjrt").requires_grad_()
    compiled: Any = torch.compile(
        function, backend="pjrt", options=dict[str, Any](memory_budget=0.0)
    )
    y = compiled(x)
    y.sum().backward()
    assert x.grad is not None
    return y.detach().cpu(), x.grad.cpu()


@contextmanager
def in_the_middle_of(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, job: Callable[[], Any]
) -> Iterator[None]:
    """`job` runs on another thread up to its call of `owner.name`, and waits there until the block ends."""
    reached, go_on = threading.Event(), threading.Event()
    original = getattr(owner, name)

    def waiting(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            assert go_on.wait(HANGS_S)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, waiting)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(job)
        assert reached.wait(HANGS_S) or future.result()
        try:
            yield
        finally:
            go_on.set()
            future.result()


def test_the_partitioner_is_pytorchs_own_on_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    numbers = torch.linspace(0.1, 1.0, 64)
    seen: list[bool] = []

    def job() -> None:
        seen.append(pjrt_gradient(dropped, numbers)[1].isfinite().all().item())  # type: ignore[arg-type]

    name = "min_cut_rematerialization_partition"
    with in_the_middle_of(monkeypatch, partition, name, job):
        graph = torch.fx.symbolic_trace(lambda x: x + 1)
        draws = torch.fx.symbolic_trace(drawn)
        for node in draws.graph.nodes:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        assert not partitioners.has_recomputable_rng_ops(graph)
        assert partitioners.has_recomputable_rng_ops(draws)
        ours = torch.tensor([0.5, 2.0], requires_grad=True)
        on_cpu = aot_function(
            lambda x: (x * x).sin(), nop, nop, min_cut_rematerialization_partition
        )
        on_cpu(ours).sum().backward()
        expected = torch.tensor([0.5, 2.0], requires_grad=True)
        (expected * expected).sin().sum().backward()
        torch.testing.assert_close(ours.grad, expected.grad)
    assert seen == [True]


def test_many_threads_compile_with_gradients_at_the_same_time() -> None:
    """For the device within a budget, for the device with loops, and for the CPU with checkpoints."""
    torch._dynamo.reset()
    numbers = torch.linspace(-0.7, 0.9, 24).reshape(6, 4)
    pjrt_gradient(powers, numbers)  # from now on PyTorch's functions ask on which thread they are
    expected = {f: _gradient_on_cpu(f, numbers) for f in (looped, powers)}
    saved = partitioners.has_recomputable_rng_ops, partitioners.choose_saved_values_set

    def at(n: int) -> None:
        function = (looped, powers)[n % 2]
        if n % 3 == 2:
            x = numbers.clone().requires_grad_()
            compiled: Any = torch.compile(
                lambda x: checkpoint(dropped, x, use_reentrant=False) + n,
                backend="aot_eager_decomp_partition",
            )
            compiled(x).sum().backward()
            assert x.grad is not None
            return
        y, gradient = pjrt_gradient(lambda x: function(x) + n, numbers)
        torch.testing.assert_close(y, expected[function][0] + n)
        torch.testing.assert_close(gradient, expected[function][1])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(at, range(12)))

    assert saved == (partitioners.has_recomputable_rng_ops, partitioners.choose_saved_values_set)


def powers(x: Tensor) -> Tensor:
    return (x * x).sin() * x.exp()


def _gradient_on_cpu(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    y.sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad
