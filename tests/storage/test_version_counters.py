"""Versions count writes as on CPU, and a backward that needs what was overwritten is refused as on CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from as_on_cpu import assert_as_on_cpu

Tensor = torch.Tensor


def matrix(device: str) -> Tensor:
    return torch.arange(12.0).reshape(3, 4).clone().to(device)


def positions(x: Tensor, *n: int) -> Tensor:
    return torch.tensor(n, device=x.device)


def _unversioned(x: Tensor) -> None:
    with torch.autograd._unsafe_preserve_version_counter(x):
        x.add_(1)


def _kept(x: Tensor) -> None:
    with torch.no_grad():
        x.add_(1)


def _in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.add_(1)


# What is done to a matrix; then its version is read, and that of a view taken before.
WRITES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda x: x + 1,
    "add_": lambda x: x.add_(1),
    "add_ of nothing": lambda x: x[:0].add_(1),
    "twice": lambda x: x.mul_(2).add_(1),
    "operator": lambda x: x.__iadd__(1),
    "to a view": lambda x: x[1].zero_(),
    "to a view of a view": lambda x: x.t()[1:].neg_(),
    "to a detached one": lambda x: x.detach().add_(1),
    "to data": lambda x: x.data.add_(1),
    "copy_": lambda x: x.copy_(x.clone()),
    "copy_ of itself": lambda x: x.copy_(x),
    "copy_ of a host tensor": lambda x: x.copy_(torch.ones(3, 4)),
    "setitem": lambda x: x.__setitem__(0, 1),
    "setitem of nothing": lambda x: x.__setitem__(slice(0, 0), 1),
    "setitem by a mask": lambda x: x.__setitem__(x > 3, 1.0),
    "setitem by a list": lambda x: x.__setitem__([0, 1], 1.0),
    "setitem by a tensor": lambda x: x.__setitem__((positions(x, 0), positions(x, 1)), 1.0),
    "out=": lambda x: torch.add(x, 1, out=x),
    "out= of two": lambda x: torch.max(x, 0, out=(x[0], positions(x, 0, 0, 0, 0))),
    "out= resized": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "fill_diagonal_": lambda x: x.fill_diagonal_(1),
    "masked_fill_": lambda x: x.masked_fill_(x > 3, 1),
    "index_add_": lambda x: x.index_add_(0, positions(x, 1), x[:1].clone()),
    "scatter_": lambda x: x.scatter_(0, positions(x, 1, 1)[None], 1.0),
    "random": lambda x: x.bernoulli_(0.0),
    "squeeze_": lambda x: x.squeeze_(),
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0).squeeze_(0),
    "transpose_": lambda x: x.transpose_(0, 1),
    "resize_": lambda x: x.resize_(4, 3),
    "set_": lambda x: x.set_(x.clone()),
    "detach_": lambda x: x.detach_(),
    "requires_grad_": lambda x: x.requires_grad_(),
    "data =": lambda x: setattr(x, "data", x + 1),
    "foreach": lambda x: torch._foreach_add_([x[0], x[1]], 1.0),
    "foreach of lists": lambda x: torch._foreach_mul_([x], [x.clone()]),
    "batch_norm": lambda x: F.batch_norm(x, x[0], x[1], training=True),
    "without versions": _unversioned,
    "version kept": _kept,
    "in inference mode": _in_inference,
    "relu_": lambda x: F.relu(x, inplace=True),
    "clip_grad": lambda x: torch.nn.utils.clip_grad_norm_([x], 1.0),
    "storage": lambda x: x.untyped_storage().resize_(100),
    "swap": lambda x: torch.utils.swap_tensors(x, x.clone()),
}


@pytest.mark.parametrize("name", WRITES)
def test_write_counts_as_on_cpu(name: str) -> None:
    def versions(device: str) -> list[object]:
        x = matrix(device)
        before = x._version
        view = x[1:]
        WRITES[name](x)
        return [before, x._version, view._version, x.shape]

    assert_as_on_cpu(versions)


def _after(
    y: Tensor,
    z: Tensor,
    write: Callable[[], object] | None,
    write_result: Callable[[Tensor], object] | None = None,
) -> Tensor:
    """`z`, after something was written."""
    if write is not None:
        write()
    if write_result is not None:
        write_result(z)
    return z


def _by_index(x: Tensor) -> Tensor:
    i = positions(x, 0, 1)
    y = x[i]
    i.add_(1)
    return y


def _view_without_grad(x: Tensor) -> Tensor:
    y = x * 1
    with torch.no_grad():
        view = y[0]
    view.mul_(2)
    return y


def _twice(x: Tensor) -> Tensor:
    y = x * 1
    z = (y * y).sum()
    z.backward(retain_graph=True)
    y.add_(1)
    return z


# From a leaf and what was computed of it, something to backpropagate; each writes somewhere before.
GRAPHS: dict[str, Callable[[Tensor], Tensor]] = {
    "the input of a square": lambda x: _after(y := x * 1, y * y, lambda: y.add_(1)),
    "the result of exp": lambda x: _after(y := x, y.exp(), None, lambda z: z.add_(1)),
    "the input of exp": lambda x: _after(y := x * 0, y.exp(), lambda: y.add_(1)),
    "the input of a sum": lambda x: _after(y := x * 1, y.sum(), lambda: y.add_(1)),
    "a view of an input": lambda x: _after(y := x * 1, y * y, lambda: y[0].add_(1)),
    "the base of an input": lambda x: _after(y := x * 1, y[0] * y[1], lambda: y.add_(1)),
    "a detached input": lambda x: _after(y := x * 1, y * y, lambda: y.detach().add_(1)),
    "data of an input": lambda x: _after(y := x * 1, y * y, lambda: y.data.add_(1)),
    "an input before its use": lambda x: (x * 1).add_(1) ** 2,
    "a view that is used": lambda x: _after(y := x * 1, y, lambda: y[1].mul_(x[0])),
    "relu's result": lambda x: _after(x, x.relu(), None, lambda z: z.mul_(2)),
    "dropout's result": lambda x: F.dropout(x, 0.0).mul_(2) * x,
    "softmax's result": lambda x: _after(x, x.softmax(0), None, lambda z: z.zero_()),
    "indices": _by_index,
    "a leaf": lambda x: x.add_(1),
    "a view of a leaf": lambda x: x[0].add_(1),
    "a leaf's expanded view": lambda x: x.expand(2, 3, 4).zero_(),
    "out= of a leaf": lambda x: torch.add(x.detach(), 1, out=x),
    "out= from a leaf": lambda x: torch.add(x, 1, out=x.detach()),
    "a part of unbind": lambda x: (x * 1).unbind()[0].add_(1),
    "a part of split": lambda x: (x * 1).split(2)[0].add_(1),
    "a part of chunk": lambda x: (x * 1).chunk(2)[0].add_(1),
    "one of several views": lambda x: _after(y := x * 1, y * 2, y.view(-1)[::2].zero_),
    "a view made without grad": _view_without_grad,
    "leaf by setitem": lambda x: x.__setitem__(0, 1.0) or x,
    "setitem of a part": lambda x: _after(y := x * 1, y, lambda: y.__setitem__(0, x[1] * 2)),
    "setitem by a list": lambda x: _after(y := x * 1, y, lambda: y.__setitem__([0, 2], x[1] * 2)),
    "setitem by a mask": lambda x: _after(y := x * 1, y, lambda: y.__setitem__(y > 3, 0.0)),
    "set data of a leaf": lambda x: _after(x, x * x, lambda: setattr(x, "data", x * 2)),
    "matrix product's input": lambda x: _after(y := x * 1, y @ y.t(), y.zero_),
    "clone of an input": lambda x: _after(y := x * 1, y * y, lambda: y.clone().add_(1)),
    "foreach on inputs": lambda x: _after(y := x * 1, y * y, lambda: torch._foreach_add_([y], 1.0)),
    "no_grad": lambda x: _after(y := x * 1, y * y, lambda: _kept(y)),
    "detach_ of a view": lambda x: (x * 1)[0].detach_(),
    "transposed in place": lambda x: _after(y := x * 1, y, y.t_),
    "squeezed in place": lambda x: _after(y := x * 1, y, lambda: y.unsqueeze_(0).squeeze_()),
    "a retained graph": _twice,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", GRAPHS)
def test_backward_after_a_write_is_refused_or_right_as_on_cpu(name: str) -> None:
    def gradient(device: str) -> object:
        x = matrix(device).requires_grad_()
        y = GRAPHS[name](x)
        y.sum().backward()
        return [y.shape, type(y.grad_fn).__name__, y._base is not None, x.grad.tolist()]

    assert_as_on_cpu(gradient)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_backward_after_a_write_to_a_weight_of_linear_is_refused(device: str) -> None:
    """The CPU names the transposed weight, which its composition keeps, and the device the weight itself."""
    x = matrix(device).requires_grad_()
    weight = x * 1
    y = F.linear(x, weight)
    weight.mul_(2)

    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .* is at version 1"):
        y.sum().backward()


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_a_saved_tensor_changed_by_a_list_operator_is_noticed(device: str) -> None:
    w = torch.ones(3, device=device, requires_grad=True)
    loss = (w * w).sum()
    with torch.no_grad():
        torch.ops.aten._foreach_add_.Scalar([w], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
