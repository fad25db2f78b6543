"""Tensors share memory where they do on CPU, and PyTorch's own questions about it have the CPU's answers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from as_on_cpu import assert_as_on_cpu

Tensor = torch.Tensor
is_alias_of: Any = vars(torch._C)["_is_alias_of"]


def matrix(d: str) -> Tensor:
    return torch.arange(12.0).reshape(3, 4).clone().to(d)


def complex_matrix(d: str) -> Tensor:
    return torch.complex(torch.arange(6.0), torch.arange(6.0) + 10).reshape(2, 3).clone().to(d)


def position(t: Tensor) -> list[object]:
    """Where a tensor lies in its storage, and how large that is."""
    start = t.data_ptr() - t.untyped_storage().data_ptr() if t.numel() else None
    return [t, t._base is None, start, t.untyped_storage().nbytes()]


# Looks at a matrix; what they give is written to.
VIEWS: dict[str, Callable[[Tensor], object]] = {
    "alias": torch.ops.aten.alias,
    "as_strided": lambda t: t.as_strided((2, 2), (4, 1), 1),
    "as_strided of nothing": lambda t: t.as_strided((0, 2), (1, 1)),
    "as_strided of one": lambda t: t.as_strided((), (), 5),
    "as_strided of a slice": lambda t: t[1:].as_strided((2,), (1,)),
    "as_strided backwards": lambda t: t.as_strided((2,), (-1,)),
    "as_strided out of it": lambda t: t.as_strided((5, 5), (4, 1)),
    "as_strided behind it": lambda t: t.as_strided((1,), (1,), 12),
    "as_strided before it": lambda t: t.as_strided((1,), (1,), -1),
    "as_strided of two lengths": lambda t: t.as_strided((1, 2), (1,)),
    "asarray": torch.asarray,
    "as_tensor": torch.as_tensor,
    "atleast_3d": torch.atleast_3d,
    "broadcast_tensors": lambda t: torch.broadcast_tensors(t, t[:1])[::-1],
    "chunk": lambda t: t.chunk(2, 1),
    "conj": lambda t: t.conj(),
    "contiguous": lambda t: t.contiguous(),
    "data": lambda t: t.data,
    "detach": lambda t: t.detach(),
    "diagonal": lambda t: t.diagonal(1),
    "diagonal out of it": lambda t: t.diagonal(-5),
    "diagonal of one dim": lambda t: t.diagonal(0, 1, 1),
    "expand of 1": lambda t: t[:1].expand(1, 4),
    "expand of another size": lambda t: t.expand(3, 5),
    "flatten": lambda t: t.flatten(),
    "flatten of the transpose": lambda t: t.t().flatten(),
    "H, adjoint": lambda t: [t.adjoint(), t.mH, t.H],
    "hsplit, vsplit": lambda t: [*t.hsplit(2), *t.vsplit(3)],
    "iteration": list,
    "movedim": lambda t: t.movedim(1, 0),
    "mT": lambda t: t[None].mT,
    "narrow": lambda t: t.narrow(1, 1, 2),
    "narrow at a tensor": lambda t: t.narrow(1, torch.tensor(1), 2),
    "narrow out of it": lambda t: t.narrow(1, 3, 2),
    "permute": lambda t: t.permute(1, 0),
    "positive": lambda t: +t,
    "ravel": lambda t: t.ravel(),
    "real": lambda t: t.real,
    "reshape": lambda t: t.reshape(4, 3),
    "select": lambda t: t.select(1, -1),
    "slice": lambda t: t[1:, ::3],
    "split": lambda t: t.split(2),
    "split of sizes": lambda t: t.split([1, 3], 1),
    "split of wrong sizes": lambda t: t.split([1, 1], 1),
    "squeeze": lambda t: t[:1, None].squeeze((0, 1)),
    "squeeze of nothing": lambda t: t.squeeze(0),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "T": lambda t: t.T,
    "tensor_split": lambda t: t.tensor_split(3, 1),
    "tensor_split at indices": lambda t: t.tensor_split([1, 3], 1),
    "tensor_split at a tensor": lambda t: t.tensor_split(torch.tensor([1, 2])),
    "to the same": lambda t: t.to(torch.float32),
    "transpose of no dim": lambda t: t.transpose(0, 2),
    "unbind": lambda t: t.unbind(1),
    "unflatten": lambda t: t.unflatten(1, (2, 2)),
    "unfold": lambda t: t.unfold(1, 2, 2),
    "unfold of nothing": lambda t: t.unfold(0, 0, 1),
    "unfold of too many": lambda t: t.unfold(0, 4, 1),
    "unsafe_split": lambda t: t.unsafe_split(2),
    "unsqueeze": lambda t: t.unsqueeze(-1),
    "view": lambda t: t.view(2, 6),
    "view as bfloat16": lambda t: t.view(torch.bfloat16),
    "view as complex": lambda t: torch.view_as_complex(t.view(6, 2)),
    "view as complex of 4": torch.view_as_complex,
    "view as complex64": lambda t: t.view(torch.complex64),
    "view as float64": lambda t: t.view(torch.float64),
    "view as float64 from an odd offset": lambda t: t.view(-1)[1:5].view(torch.float64),
    "view as int32 of the transpose": lambda t: t.t().view(torch.int32),
    "view as uint8 of the transpose": lambda t: t.t().view(torch.uint8),
    "view of the transpose": lambda t: t.t().view(-1),
    "view_as": lambda t: t.view_as(torch.empty(4, 3)),
}
COMPLEX_VIEWS: dict[str, Callable[[Tensor], object]] = {
    "conj": lambda t: t.conj(),
    "conj as_strided": lambda t: t.conj().as_strided((2,), (1,)),
    "conj clone": lambda t: t.conj().clone(),
    "conj conj": lambda t: t.conj().conj(),
    "conj contiguous": lambda t: t.conj().contiguous(),
    "conj detach": lambda t: t.conj().detach(),
    "conj imag": lambda t: t.conj().imag,
    "conj imag as bits": lambda t: t.conj().imag.view(torch.int32),
    "conj of the transpose, flat": lambda t: t.conj().T.reshape(-1),
    "conj real": lambda t: t.conj().real,
    "conj slice": lambda t: t.conj()[0],
    "conj unbind": lambda t: t.conj().unbind(),
    "conj as parts": lambda t: torch.view_as_real(t.conj()),
    "conj as floats": lambda t: t.conj().view(torch.float32),
    "conj_physical": lambda t: t.conj_physical(),
    "H": lambda t: t.H,
    "imag": lambda t: t.imag,
    "negated": torch._neg_view,
    "negated conj": lambda t: torch._neg_view(t).conj(),
    "negated imag of conj": lambda t: torch._neg_view(t.conj().imag),
    "real": lambda t: t.real,
    "real of the transpose": lambda t: t.T.real,
    "resolve_conj": lambda t: t.conj().resolve_conj(),
    "resolve_neg": lambda t: t.conj().imag.resolve_neg(),
    "view as complex128": lambda t: t[:, :2].view(torch.complex128),
    "view as real": torch.view_as_real,
}


def seen(view: Callable[[Tensor], object], x: Tensor) -> object:
    """What is known of the views of `x`; then what is seen after a write to the last of them."""
    given: Any = view(x)
    views: list[Tensor] = list(given) if isinstance(given, (list, tuple)) else [given]
    relations = [
        (v._base is x, v.is_set_to(x), is_alias_of(v, x), v.is_contiguous()) for v in views
    ]
    content = [v.clone() for v in views]
    views[-1].mul_(2) if views[-1].dtype.is_floating_point else views[-1].zero_()
    return (
        relations,
        content,
        [position(v) for v in views],
        x,
        torch._debug_has_internal_overlap(views[0]),
    )


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.filterwarnings("ignore")
def test_view_is_seen_and_written_as_on_cpu(name: str) -> None:
    assert_as_on_cpu(lambda d: seen(VIEWS[name], matrix(d)))
    assert_as_on_cpu(lambda d: seen(VIEWS[name], matrix(d) + 1))


@pytest.mark.parametrize("name", COMPLEX_VIEWS)
def test_view_of_complex_numbers_is_seen_and_written_as_on_cpu(name: str) -> None:
    assert_as_on_cpu(lambda d: seen(COMPLEX_VIEWS[name], complex_matrix(d)))


# What gives a tensor another look.
LOOKS: dict[str, Callable[[Any], object]] = {
    "as_strided_": lambda t: t.as_strided_((2, 2), (1, 2), 1),
    "as_strided_ out of it": lambda t: t.as_strided_((9, 9), (9, 1)),
    "detach_": lambda t: t.detach_(),
    "requires_grad_": lambda t: t.requires_grad_(),
    "resize_": lambda t: t.resize_(2, 2),
    "resize_ to channels last": lambda t: t.resize_(1, 2, 2, 2, memory_format=torch.channels_last),
    "resize_ to less than nothing": lambda t: t.resize_(-1),
    "resize_as_": lambda t: t.resize_as_(torch.empty(2, 2)),
    "set_ to nothing": lambda t: t.set_(),
    "squeeze_": lambda t: t.unsqueeze_(0).squeeze_(),
    "squeeze_ of no dim": lambda t: t.squeeze_(5),
    "swapaxes_": lambda t: t.swapaxes_(0, 1),
    "t_": lambda t: t.t_(),
    "t_ of three dims": lambda t: t.unsqueeze_(0).t_(),
    "transpose_": lambda t: t.transpose_(0, 1),
    "unsqueeze_": lambda t: t.unsqueeze_(1),
}


@pytest.mark.parametrize("name", LOOKS)
def test_another_look_in_place_is_that_of_cpu(name: str) -> None:
    def changed(d: str) -> object:
        x = matrix(d)
        before, part = x[1:], x[:2]
        LOOKS[name](x)
        LOOKS[name](part)
        return position(x), position(before), position(part)

    assert_as_on_cpu(changed)


@pytest.mark.parametrize("name", [n for n in LOOKS if "resize" not in n and "set_" not in n])
def test_another_look_in_place_is_differentiated_as_on_cpu(name: str) -> None:
    def gradient(d: str) -> object:
        x = matrix(d).requires_grad_()
        y = x * 1
        LOOKS[name](y)
        if y.requires_grad:
            y.sum().backward()
        return y, None if x.grad is None else x.grad.tolist(), type(y.grad_fn).__name__

    assert_as_on_cpu(gradient)


# What puts the first tensor on the memory of the second.
MOVES: dict[str, Callable[[Any, Any], object]] = {
    "set_": lambda t, s: t.set_(s),
    "set_ to a view": lambda t, s: t.set_(s[1:]),
    "set_ to itself": lambda t, s: t.set_(t),
    "set_ to its own storage": lambda t, s: t.set_(t.untyped_storage(), 0, (12,), (1,)),
    "set_ to a storage": lambda t, s: t.set_(s.untyped_storage()),
    "set_ to a part of a storage": lambda t, s: t.set_(s.untyped_storage(), 1, (2, 2), (2, 1)),
    "set_ without strides": lambda t, s: t.set_(s.untyped_storage(), 1, (2, 2)),
    "set_ to a part of a tensor": lambda t, s: t.set_(s, 2, (2,), (3,)),
    "set_ to another dtype": lambda t, s: t.set_(s.to(torch.int32)),
    "set_ before it": lambda t, s: t.set_(s.untyped_storage(), -1, (2,), (1,)),
    "set_ of two lengths": lambda t, s: t.set_(s.untyped_storage(), 0, (2, 2), (1,)),
    "data": lambda t, s: setattr(t, "data", s),
    "data of a view": lambda t, s: setattr(t, "data", s[1:, 1:]),
    "data of another shape": lambda t, s: setattr(t, "data", s.view(-1)),
    "swap_tensors": torch.utils.swap_tensors,
}


@pytest.mark.parametrize("name", MOVES)
def test_tensor_on_the_memory_of_another_is_as_on_cpu(name: str) -> None:
    def moved(d: str) -> object:
        t, s = matrix(d), matrix(d) + 50
        old = t[0]
        try:
            MOVES[name](t, s)
        finally:
            old_is_base = old._base is t
        t.add_(1000)
        return position(t), position(s), position(old), old_is_base, t.is_set_to(s)

    assert_as_on_cpu(moved)


def test_set_beyond_a_storage_makes_it_grow() -> None:
    t, s = matrix("pjrt"), matrix("pjrt")

    t.set_(s.untyped_storage(), 10, (4,), (1,))

    assert t[:2].tolist() == [10, 11]
    assert s.untyped_storage().nbytes() == 56
    assert s.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()


STORAGES: dict[str, Callable[[Any], object]] = {
    "to nothing": lambda t: t.untyped_storage().resize_(0),
    "to nothing and back": lambda t: (t.untyped_storage().resize_(0).resize_(48), t.fill_(3)),
    "to less": lambda t: t.untyped_storage().resize_(20),
    "to odd bytes": lambda t: t.untyped_storage().resize_(50),
    "to more": lambda t: t.untyped_storage().resize_(100),
    "filled": lambda t: t.untyped_storage().fill_(0),
    "copied": lambda t: t.untyped_storage().copy_((t + 1).untyped_storage()),
}


@pytest.mark.parametrize("name", STORAGES)
def test_storage_is_resized_as_on_cpu(name: str) -> None:
    def resized(d: str) -> object:
        x, y = matrix(d), matrix(d) * 1
        view = x[1:]
        STORAGES[name](x)
        STORAGES[name](y)
        sizes = [t.untyped_storage().nbytes() for t in (x, y, view)] + [len(y.untyped_storage())]
        kept = min(12, sizes[0] // 4)
        parts = [t.as_strided((kept,), (1,), 0) for t in (x, y)]
        return sizes, x.shape, x._version, [p.tolist() for p in parts]

    assert_as_on_cpu(resized)


def test_tensor_that_reaches_out_of_its_storage_cannot_be_read_or_written() -> None:
    x = matrix("pjrt")
    x.untyped_storage().resize_(0)

    for use in (lambda: x + 1, lambda: x.add_(1), x.sum, lambda: x.copy_(x.new_ones(3, 4))):
        with pytest.raises(
            RuntimeError, match="need a storage of 48 bytes, but it was resized to 0"
        ):
            use()
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.cpu()


def test_tensors_on_one_memory_are_one_memory_for_pytorch_whenever_it_is_asked() -> None:
    x = torch.ones(3, 4, device="pjrt") + 1
    before = x.detach()
    assert before.data_ptr() == x.data_ptr()
    after = x.view(-1)

    assert before.is_set_to(x) and is_alias_of(before, after)
    assert before.untyped_storage()._cdata == after.untyped_storage()._cdata


def test_saved_tensors_on_one_memory_are_saved_once() -> None:
    x = torch.ones(100, device="pjrt") + 1
    part = x.detach()
    part[:3].zero_()
    file = io.BytesIO()

    torch.save([x, part], file)

    file.seek(0)
    first, second = torch.load(file)
    first.add_(1)
    assert second[:4].tolist() == [1, 1, 1, 3]


# What writes to memory that it reads.
OVERLAPS: dict[str, Callable[[Tensor], object]] = {
    "add to itself": lambda x: torch.add(x, 1, out=x),
    "add to another row": lambda x: torch.add(x[0], x[1], out=x[2]),
    "add to shifted rows": lambda x: torch.add(x[:2], 1, out=x[1:]),
    "add of the same view": lambda x: torch.add(x[:2], 1, out=x[:2]),
    "abs of shifted": lambda x: torch.abs(x.view(-1)[:-1], out=x.view(-1)[1:]),
    "addcmul_ of itself": lambda x: x.addcmul_(x, x),
    "cat to its part": lambda x: torch.cat([x[:1], x[1:2]], out=x[1:]),
    "cat to other rows": lambda x: torch.cat([x[:1], x[:1]], out=x[1:]),
    "copy_ of shifted": lambda x: x.view(-1)[1:].copy_(x.view(-1)[:-1]),
    "copy_ of a row": lambda x: x.copy_(x[0]),
    "cumsum of itself": lambda x: torch.cumsum(x, 0, out=x),
    "fill_ of an element": lambda x: x.fill_(x[1, 1]),
    "gather": lambda x: torch.gather(x, 0, torch.zeros_like(x, dtype=torch.int64), out=x),
    "index_add_ of a row": lambda x: x.index_add_(0, torch.tensor([1], device=x.device), x[:1]),
    "index_add_ of itself": lambda x: x.index_add_(0, torch.arange(3, device=x.device), x),
    "index_copy_ of a row": lambda x: x.index_copy_(0, torch.tensor([1], device=x.device), x[:1]),
    "index_put_ of rows": lambda x: x.index_put_((torch.tensor([0, 1], device=x.device),), x[1:3]),
    "index_select": lambda x: torch.index_select(x, 0, torch.arange(3, device=x.device), out=x),
    "masked_fill_ of an element": lambda x: x.masked_fill_(x > 3, x[0, 1]),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 3, x.flip(0)),
    "mul_ of shifted": lambda x: x.view(-1)[1:].mul_(x.view(-1)[:-1]),
    "put_": lambda x: x.put_(torch.tensor([1, 2], device=x.device), x.view(-1)[:2]),
    "scatter_": lambda x: x.scatter_(
        0, torch.ones(1, 4, dtype=torch.int64, device=x.device), x[:1]
    ),
    "sort": lambda x: torch.sort(
        x, descending=True, out=(x, torch.empty(0, dtype=torch.int64, device=x.device))
    ),
    "take": lambda x: torch.take(x, torch.tensor([3, 2], device=x.device), out=x[0, :2]),
    "where": lambda x: torch.where(x > 3, x, -x, out=x),
    "expanded add_": lambda x: x.expand(2, 3, 4).add_(1),
    "expanded zero_": lambda x: x.expand(2, 3, 4).zero_(),
    "expanded copy_": lambda x: x.expand(2, 3, 4).copy_(x),
    "expanded setitem": lambda x: x.expand(2, 3, 4).__setitem__(0, 1),
    "expanded masked_fill_": lambda x: x.expand(2, 3, 4).masked_fill_(x > 2, 0),
    "expanded cumsum_": lambda x: x[0].expand(2, 4).cumsum_(0),
    "expanded cat": lambda x: torch.cat([x[:1], x[:1]], out=x[0].expand(2, 4)),
    "expanded mm": lambda x: torch.mm(x[:, :3], x[:, :3], out=x[0, :3].expand(3, 3)),
    "expanded add": lambda x: torch.add(x[0], 1, out=x[:1].expand(3, 4)),
    "expanded scatter_": lambda x: x.expand(2, 3, 4).scatter_(
        0, torch.zeros(1, 1, 1, dtype=torch.int64, device=x.device), 9.0
    ),
    "expanded, without elements": lambda x: x[:0].expand(2, 0, 4).add_(1),
    "unfolded zero_": lambda x: x.unfold(1, 2, 1).zero_(),
    "out= of another dtype": lambda x: torch.add(
        x, 1, out=torch.empty(3, 4, dtype=torch.int32, device=x.device)
    ),
    "out= of a wider dtype": lambda x: torch.add(
        x, 1, out=torch.empty(3, 4, dtype=torch.float64, device=x.device)
    ),
    "out= transposed": lambda x: torch.add(x, 1, out=torch.empty(4, 3, device=x.device).t()),
    "out= that requires grad": lambda x: torch.add(
        x, 1, out=torch.zeros(3, 4, device=x.device, requires_grad=True)
    ),
    "foreach: one twice": lambda x: torch._foreach_add_([x[0], x[0]], 1.0),
    "foreach: overlapping": lambda x: torch._foreach_add_([x.view(-1)[:6], x.view(-1)[3:9]], 1.0),
    "foreach: crosswise": lambda x: torch._foreach_add_([x[0], x[1]], [x[1], x[0]]),
    "foreach: shifted": lambda x: torch._foreach_mul_(
        [x.view(-1)[:4], x.view(-1)[4:8]], [x.view(-1)[6:10], x.view(-1)[2:6]]
    ),
    "foreach: with itself": lambda x: torch._foreach_mul_([x[0], x[1]], [x[0], x[1]]),
    "foreach: three lists": lambda x: torch._foreach_addcmul_(
        [x[0], x[1]], [x[1], x[0]], [x[0], x[0]]
    ),
    "foreach: one list": lambda x: torch._foreach_neg_([x[:2], x[1:]]),
    "foreach: copies": lambda x: torch._foreach_copy_([x[0], x[1]], [x[1], x[2]]),
    "foreach: its own part": lambda x: torch._foreach_add_([x.view(-1)[1:5]], [x.view(-1)[:4]]),
    "foreach: columns": lambda x: torch._foreach_add_([x[:, ::2], x[:, 1:]], 1.0),
    "foreach: expanded": lambda x: torch._foreach_add_([x[0].expand(2, 4)], 1.0),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_write_to_memory_that_is_read_is_refused_or_done_as_on_cpu(name: str) -> None:
    def written(d: str) -> object:
        x = matrix(d)
        try:
            result = OVERLAPS[name](x)
        except RuntimeError as error:
            return str(error), x
        return result, x, result is x

    assert_as_on_cpu(written)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, **out: torch.addmm(x, x, x, **out),
        lambda x, **out: torch.bmm(x[None], x[None], **out),
        lambda x, **out: torch.matmul(x, x, **out),
        lambda x, **out: torch.mm(x, x, **out),
    ],
    ids=["addmm", "bmm", "matmul", "mm"],
)
def test_product_written_to_its_factor_is_as_with_a_copy(product: Callable[..., Tensor]) -> None:
    """On the CPU it depends on the processor: some BLAS kernels read what they have written."""
    x = matrix("pjrt")[:, :3]
    expected = product(x).cpu()

    product(x, out=x.view(expected.shape))

    assert torch.equal(x.cpu().view(expected.shape), expected)


def test_out_on_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="found at least two devices, pjrt:0 and cpu"):
        torch.add(matrix("pjrt"), 1, out=torch.empty(3, 4))


def test_a_deep_copy_keeps_two_tensors_on_one_memory() -> None:
    x = torch.zeros(4, device="pjrt") + 1
    alias = x.detach()
    seen_otherwise = x.view(2, 2)  # gives `x`, and not `alias`, a storage of true size
    x, alias, seen_otherwise = copy.deepcopy((x, alias, seen_otherwise))
    seen_otherwise.add_(1)
    assert x.tolist() == alias.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_lists_with_shared_elements_are_done_in_turn(device: str) -> None:
    a, b = torch.tensor(1.0, device=device), torch.tensor(5.0, device=device)
    torch.ops.aten._foreach_add_.List([a, b], [b, a])
    torch.ops.aten._foreach_mul_.Scalar([a, a, b], 2.0)
    assert (a.item(), b.item()) == (24, 22)
