"""Things that a device may not support, from every layer of PyTorch: each gives a result or raises.

As a script it runs them from a row of the table on, and says of each that it begins and how it ended,
since the process may die of it: `python odd_tensors.py 12`.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

d = "pjrt"
untyped: Any = torch.UntypedStorage
typed: Any = torch.TypedStorage
T: Any = torch
Odd = Callable[[], object]


def x(*shape: int) -> Any:
    return torch.ones(shape or (2, 3), device=d)


def g(*shape: int) -> Any:
    return torch.ones(shape or (2, 3), device=d, requires_grad=True)


def pickled(thing: object) -> object:
    return pickle.loads(pickle.dumps(thing))


def saved(thing: object) -> object:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def stored(storage: Any) -> Any:
    return lambda: storage(x().untyped_storage())


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Any, where: str) -> Any:  # type: ignore[override]
        ctx.where = where
        if where == "forward":
            raise ValueError("forward")
        return given * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        raise ValueError("backward")


def raising(*args: Any) -> Any:
    raise ValueError("a hook")


def hooked(where: str) -> object:
    leaf = g()
    y = leaf * 2
    if where == "tensor":
        y.register_hook(raising)
    elif where == "node":
        y.grad_fn.register_hook(raising)
    elif where == "node before":
        y.grad_fn.register_prehook(raising)
    elif where == "accumulated":
        leaf.register_post_accumulate_grad_hook(raising)
    y.sum().backward()
    return leaf.grad


def saved_by(pack: Any, unpack: Any) -> object:
    leaf = g()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = leaf.exp()
    y.sum().backward()
    return leaf.grad


def anomalous() -> object:
    with torch.autograd.detect_anomaly():
        return (g() * float("nan")).sqrt().sum().backward()


def forward_derivative() -> object:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x(), x())
        return forward_ad.unpack_dual(dual.exp()).tangent


def set_data(target: Any, source: Any) -> object:
    target.data = source
    return target


def set_gradient(target: Any, source: Any) -> object:
    target.grad = source
    return target.grad


def into(storage: Any, index: int, value: int) -> object:
    storage[index] = value
    return storage[index]


def nested_on_host(**kwargs: Any) -> Any:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], **kwargs)


def csr(values: Any) -> Any:
    return torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], device=d), torch.tensor([0, 1], device=d), values, (2, 2)
    )


def coo(values: Any) -> Any:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]], device=d), values, (2, 2))


LAYOUTS = (
    "sparse_coo",
    "sparse_csr",
    "sparse_csc",
    "sparse_bsr",
    "sparse_bsc",
    "_mkldnn",
    "jagged",
)
DTYPES = (
    "quint8",
    "qint8",
    "qint32",
    "quint4x2",
    "quint2x4",
    "bits8",
    "bits16",
    "bits1x8",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "int1",
    "int4",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "complex32",
    "complex128",
)

STORAGES: dict[str, Odd] = {
    "typed storage": lambda: typed(dtype=torch.int64, device=d),
    "typed storage of a size": lambda: typed(3, dtype=torch.int64, device=d),
    "typed storage of values": lambda: typed([1, 2, 3], dtype=torch.int64, device=d),
    "typed storage with an index": lambda: typed(2, dtype=torch.int64, device="pjrt:0"),
    "untyped storage": lambda: untyped(device=d),
    "untyped storage of a size": lambda: untyped(8, device=d),
    "untyped storage of bytes": lambda: untyped([1, 2, 3], device=d),
    "untyped storage of -1": lambda: untyped(-1, device=d),
    "untyped storage of far too much": lambda: untyped(1 << 62, device=d),
    "untyped storage of text": lambda: untyped("no", device=d),
    "tensor on a new storage": lambda: x().set_(untyped(24, device=d)) + 1,
    "tensor of ints on a storage": lambda: x().set_(x().untyped_storage(), 0, (2,), (1,)) + 1,
    "storage's type": lambda: x().storage().type(),
    "storage to another type": lambda: x().storage().type("torch.DoubleStorage"),
    "storage to double": lambda: x().storage().double(),
    "storage's pickle": lambda: pickled(x().storage()),
    "storage's legacy pickle": lambda: pickled(x().untyped_storage()),
    "storage filled": stored(lambda s: s.fill_(1)),
    "storage's element": stored(lambda s: s[0]),
    "storage's elements": stored(lambda s: s[0:2]),
    "storage's element set": stored(lambda s: into(s, 0, 1)),
    "storage's new": stored(lambda s: s.new()),
    "storage shared": stored(lambda s: s.share_memory_()),
    "storage is shared": stored(lambda s: s.is_shared()),
    "storage pinned": stored(lambda s: s.pin_memory()),
    "storage is pinned": stored(lambda s: s.is_pinned()),
    "storage's weak reference": stored(lambda s: s._weak_ref()),
    "storage shared by a file": stored(lambda s: s._share_filename_cpu_()),
    "storage shared by a descriptor": stored(lambda s: s._share_fd_cpu_()),
    "storage as list": stored(lambda s: s.tolist()),
    "storage's bytes swapped": stored(lambda s: s.byteswap(torch.float32)),
    "storage copied": stored(copy.copy),
    "storage copied deeply": stored(copy.deepcopy),
    "storage cloned": stored(lambda s: s.clone()),
    "storage to the CPU": stored(lambda s: s.cpu()),
    "storage to the device": lambda: torch.ones(2).untyped_storage().to(device=d),
    "storage resized": stored(lambda s: s.resize_(64)),
    "storage resized to -1": stored(lambda s: s.resize_(-1)),
    "storage to CUDA": stored(lambda s: s.cuda()),
    "storage from CPU copied over": stored(lambda s: s.copy_(torch.ones(6).untyped_storage())),
    "storage over a CPU one": lambda: torch.ones(6).untyped_storage().copy_(x().untyped_storage()),
    "storage printed": stored(str),
    "storage's hash": stored(hash),
    "storage's filename": stored(lambda s: s.filename),
    "storage of a file": lambda: untyped.from_file("/dev/null", False, 0, device=d),
}

MADE: dict[str, Odd] = {
    **{
        f"zeros of layout {k}": lambda k=k: T.zeros(2, 3, layout=getattr(T, k), device=d)
        for k in LAYOUTS
    },
    **{
        f"empty of layout {k}": lambda k=k: T.empty(2, 3, layout=getattr(T, k), device=d)
        for k in LAYOUTS
    },
    **{f"to layout {k}": lambda k=k: g(2, 2).to_sparse(layout=getattr(T, k)) for k in LAYOUTS[:3]},
    **{f"empty of {k}": lambda k=k: T.empty(4, dtype=getattr(T, k), device=d) for k in DTYPES},
    **{f"ones of {k}": lambda k=k: T.ones(4, dtype=getattr(T, k), device=d) + 1 for k in DTYPES},
    **{f"to {k}": lambda k=k: g(2, 4).to(getattr(T, k)) for k in DTYPES},
    **{f"view of {k}": lambda k=k: x(2, 4).view(getattr(T, k)) for k in DTYPES},
    "empty pinned": lambda: torch.empty(2, device=d, pin_memory=True),
    "legacy constructor": lambda: torch.Tensor(2, 3, device=d),  # type: ignore[call-arg]
    "legacy new": lambda: x().new(2, 3),
    "legacy new of values": lambda: x().new([1, 2]),
    "legacy new of a storage": lambda: x().new(x().untyped_storage()),
    "legacy type": lambda: x().type(),
    "to a legacy type": lambda: x().type("torch.DoubleTensor"),
    "to a legacy type of the device": lambda: x().type("torch.pjrt.DoubleTensor"),
    "names": lambda: T.ones(2, 3, names=("a", "b"), device=d) * 2,
    "names and a sum": lambda: T.ones(2, 3, names=("a", "b"), device=d).sum("a"),
    "names given": lambda: g().rename("a", "b").align_to("b", "a").sum().backward(),
    "names refined": lambda: x().refine_names("a", ...).unflatten("a", (("c", 1), ("d", 2))),
    "uninitialized parameter": lambda: T.nn.UninitializedParameter(device=d),
    "lazy linear": lambda: nn.LazyLinear(3, device=d)(x()),
    "wrapper subclass": lambda: T.Tensor._make_wrapper_subclass(T.Tensor, (2, 3), device=d),
    "wrapper subclass used": lambda: (
        T.Tensor._make_wrapper_subclass(T.Tensor, (2, 3), device=d) + 1
    ),
    "as subclass": lambda: x().as_subclass(nn.Parameter),
    "masked": lambda: torch.masked.masked_tensor(x(), x() > 0).sum(),
    "masked, with gradients": lambda: torch.masked.masked_tensor(
        x(), x() > 0, requires_grad=True
    ).sum(),
    "cudnn parameter flattening": lambda: nn.LSTM(2, 3, device=d)(x(1, 2))[0].sum().backward(),
    "too large": lambda: torch.empty(1 << 62, device=d),
    "as_strided out of the storage": lambda: x().as_strided((9, 9), (9, 1)),
    "as_strided back": lambda: x().as_strided((2,), (-1,)),
    "strided of few strides": lambda: torch.empty_strided((2, 3), (1,), device=d),
    "from a file": lambda: torch.from_file("/dev/null", False, 0, device=d),  # type: ignore[call-arg]
    "to meta and back": lambda: x().to("meta").to(d),
    "to XLA": lambda: x().to("xla"),
    "to CUDA": lambda: x().cuda(),
    "to HPU": lambda: x().to("hpu"),
    "to Vulkan": lambda: x().to("vulkan"),
    "a generator": lambda: torch.Generator(d),
    "a stream": lambda: torch.Stream(device=d),
    "an event": lambda: torch.Event(device=d).record(),
    "an event's time": lambda: torch.Event(device=d, enable_timing=True).elapsed_time(
        torch.Event(d)
    ),
    "a stream recorded": lambda: x().record_stream(torch.pjrt.current_stream()),  # type: ignore[attr-defined]
    "accelerator's stream": torch.accelerator.current_stream,
    "accelerator's stream set": lambda: torch.accelerator.set_stream(torch.Stream(device=d)),
    "accelerator's index set": lambda: torch.accelerator.set_device_index(5),
    "accelerator's capability": torch.accelerator.get_device_capability,
    "accelerator's memory": torch.accelerator.memory_stats,
    "accelerator's cache": torch.accelerator.empty_cache,
}

KINDS: dict[str, Odd] = {
    "nested": lambda: torch.nested.nested_tensor([x(2, 3), x(4, 3)]),
    "nested of leaves": lambda: torch.nested.nested_tensor([x(2, 3), x(4, 3)], requires_grad=True),
    "as nested": lambda: torch.nested.as_nested_tensor([x(2, 3), x(4, 3)]),
    "as nested, with gradients": lambda: torch.nested.as_nested_tensor([g(2, 3), g(4, 3)]),
    "as nested of one": lambda: torch.nested.as_nested_tensor(g(2, 2, 3)),
    "nested from padded": lambda: T._nested_from_padded(g(2, 4, 3), torch.tensor([[2, 3], [4, 3]])),
    "nested from a mask": lambda: T._nested_tensor_from_mask(g(2, 4, 3), x(2, 4) > 0),
    "nested view": lambda: T._nested_view_from_buffer(
        g(18), torch.tensor([[2, 3], [4, 3]]), torch.tensor([[3, 1], [3, 1]]), torch.tensor([0, 6])
    ),
    "nested moved": lambda: nested_on_host().to(d),
    "nested moved, with gradients": lambda: nested_on_host(requires_grad=True).to(d),
    "nested made there": lambda: nested_on_host(device=d),
    "nested made there, copied": lambda: nested_on_host(device=d).clone(),
    "nested made there, with gradients": lambda: nested_on_host(
        device=d, requires_grad=True
    ).clone(),
    "nested made there, summed": lambda: nested_on_host(device=d, requires_grad=True).sum(),
    "nested made there, doubled": lambda: nested_on_host(device=d, requires_grad=True) * 2,
    "nested made there, backward": lambda: (
        nested_on_host(device=d, requires_grad=True).to_padded_tensor(0.0).sum().backward()
    ),
    "nested times ours": lambda: nested_on_host() * x(2, 1, 3),
    "jagged": lambda: torch.nested.nested_tensor([x(2, 3), x(4, 3)], layout=torch.jagged).sum(),
    "jagged, with gradients": lambda: (
        (torch.nested.as_nested_tensor([g(2, 3), g(4, 3)], layout=torch.jagged) * 2)
        .values()
        .sum()
        .backward()
    ),
    "jagged padded": lambda: torch.nested.as_nested_tensor(
        [g(2, 3), g(4, 3)], layout=torch.jagged
    ).to_padded_tensor(0.0),
    "encoder's fast path": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, device=d),
        1,
        enable_nested_tensor=True,
    ).eval()(x(2, 3, 4), src_key_padding_mask=torch.tensor([[False, False, True]] * 2, device=d)),
    "mkldnn": lambda: g().to_mkldnn(),
    "mkldnn moved": lambda: torch.ones(2, 3).to_mkldnn().to(d),
    "mkldnn with ours": lambda: torch.ones(2, 3).to_mkldnn() + x(),
    "quantized": lambda: torch.quantize_per_tensor(x(), 0.1, 0, torch.quint8),
    "quantized by tensors": lambda: torch.quantize_per_tensor(
        x(), x(1)[0], x(1)[0].int(), torch.quint8
    ),
    "quantized dynamically": lambda: torch.quantize_per_tensor_dynamic(x(), torch.quint8, False),
    "quantized by channels": lambda: torch.quantize_per_channel(
        x(), x(2), x(2).long(), 0, torch.quint8
    ),
    "quantized on the CPU, moved": lambda: torch.quantize_per_tensor(
        torch.ones(2), 0.1, 0, torch.quint8
    ).to(d),
    "empty quantized": lambda: T._empty_affine_quantized(
        (2,), scale=0.1, zero_point=0, dtype=torch.quint8, device=d
    ),
    "empty quantized by channels": lambda: T._empty_per_channel_affine_quantized(
        (2,), scales=x(2), zero_points=x(2).long(), axis=0, dtype=torch.quint8, device=d
    ),
    "made quantized": lambda: T._make_per_tensor_quantized_tensor(x().to(torch.uint8), 0.1, 0),
    "dequantized": lambda: x().dequantize(),
    "quantizer's scale": lambda: x().q_scale(),
    "integers of it": lambda: x().int_repr(),
    "fake quantized": lambda: (
        torch.fake_quantize_per_tensor_affine(g(), 0.1, 0, 0, 255).sum().backward()
    ),
    "COO": lambda: coo(g(2)).sum().backward(),
    "COO, dense gradient": lambda: torch.sparse.mm(coo(g(2)), g(2, 2)).sum().backward(),
    "COO of CPU indices": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), g(2), (2,)),
    "COO coalesced": lambda: coo(g(2)).coalesce().values().sum().backward(),
    "COO cubed": lambda: (coo(g(2)) * coo(g(2))).to_dense().sum().backward(),
    "COO's softmax": lambda: torch.sparse.softmax(coo(g(2)), 1).to_dense().sum().backward(),
    "COO moved": lambda: torch.eye(2).to_sparse().to(d).to_dense(),
    "COO of other devices": lambda: torch.eye(2).to_sparse() @ x(2, 2),
    "COO out of range": lambda: torch.sparse_coo_tensor(
        torch.tensor([[9]]), [1.0], (2,), device=d
    ).to_dense(),
    "CSR": lambda: csr(g(2)).to_dense().sum().backward(),
    "CSR product": lambda: (csr(g(2)) @ g(2, 2)).sum().backward(),
    "CSR solved": lambda: torch.triangular_solve(x(2, 1), csr(x(2))),
    "CSR sampled": lambda: torch.sparse.sampled_addmm(csr(g(2)), g(2, 3), g(3, 2)),
    "CSR moved": lambda: torch.eye(2).to_sparse_csr().to(d).to_dense(),
    "CSR of its own parts": lambda: csr(g(2)).crow_indices(),
    "BSR": lambda: g(4, 4).to_sparse_bsr((2, 2)).to_dense().sum().backward(),
    "half-structured": lambda: torch.sparse.to_sparse_semi_structured(x(64, 64).half()),
    "embedding of sparse gradients": lambda: (
        nn.Embedding(4, 2, sparse=True, device=d)(torch.tensor([1], device=d)).sum().backward()
    ),
    "hspmm": lambda: torch.hspmm(coo(x(2)), x(2, 2)),
    "resize_as_sparse_": lambda: x().resize_as_sparse_(coo(x(2))),
}

ACTIONS: dict[str, Odd] = {
    "pinned": lambda: x().pin_memory(),
    "is pinned": lambda: x().is_pinned(),
    "shared": lambda: x().share_memory_(),
    "is shared": lambda: x().is_shared(),
    "sent": lambda: ForkingPickler.dumps(x()),
    "a parameter sent": lambda: ForkingPickler.dumps(nn.Parameter(x())),
    "a storage sent": lambda: ForkingPickler.dumps(x().untyped_storage()),
    "sparse sent": lambda: ForkingPickler.dumps(coo(x(2))),
    "pickled": lambda: pickled(g()),
    "saved": lambda: saved(g()),
    "saved sparse": lambda: saved(coo(x(2))),
    "copied deeply": lambda: copy.deepcopy(g()),
    "copied": lambda: copy.copy(g()),
    "to NumPy": lambda: x().numpy(),
    "to NumPy by force": lambda: g().numpy(force=True),
    "as an array": lambda: x().__array__(),
    "CUDA's array": lambda: x().__cuda_array_interface__,
    "a buffer of bytes": lambda: bytes(x()),
    "taken from a buffer": lambda: torch.asarray(bytearray(8), device=d),
    "DLPack": lambda: torch.from_dlpack(x()),
    "DLPack of a leaf": lambda: torch.from_dlpack(g()),
    "data of a CPU tensor": lambda: set_data(torch.ones(2), x()),
    "data of a CPU parameter": lambda: set_data(nn.Parameter(torch.ones(2)), x()),
    "CPU data": lambda: set_data(x(), torch.ones(2)),
    "gradient on the CPU": lambda: set_gradient(g(), torch.ones(2, 3)),
    "gradient on the device": lambda: set_gradient(torch.ones(2, requires_grad=True), x(2)),
    "gradient of COO": lambda: set_gradient(g(2, 2), coo(x(2))),
    "swapped": lambda: torch.utils.swap_tensors(torch.ones(2), x(2)),
    "set to a CPU tensor": lambda: x().set_(torch.ones(2)),
    "CPU tensor set to it": lambda: torch.ones(2).set_(x()),
    "set to a CPU storage": lambda: x().set_(torch.ones(2).untyped_storage()),
    "resized as a CPU tensor": lambda: x().resize_as_(torch.ones(7)),
    "vmap": lambda: torch.vmap(lambda a: a.sin().sum())(x()),
    "vmap of a gradient": lambda: torch.vmap(torch.func.grad(lambda a: a.sin().sum()))(x()),
    "vmap in place": lambda: torch.vmap(lambda a: a.add_(1))(x()),
    "vmap of an item": lambda: torch.vmap(lambda a: a.sum().item())(x()),
    "vmap of nonzero": lambda: torch.vmap(torch.nonzero)(x()),
    "functionalized": lambda: torch.func.functionalize(lambda a: a.add_(1))(x()),
    "a functional tensor": lambda: T._to_functional_tensor(x()) + 1,
    "hessian": lambda: torch.func.hessian(lambda a: (a**3).sum())(x()),
    "jvp": lambda: torch.func.jvp(torch.sin, (x(),), (x(),)),
    "jvp of CPU": lambda: torch.func.jvp(torch.sin, (x(),), (torch.ones(2, 3),)),
    "forward derivative": forward_derivative,
    "zero tensor": lambda: torch._efficientzerotensor((2,), device=d) + 1,
    "negative view": lambda: torch._neg_view(g()).sum().backward(),
    "conjugate": lambda: torch.view_as_real(torch.ones(2, dtype=T.cfloat, device=d).conj()),
    "traced": lambda: T.jit.trace(lambda a: a + 1, x())(x()),
    "fake": lambda: torch._subclasses.FakeTensorMode().from_tensor(x()) + 1,
    "batched gradients": lambda: torch.autograd.grad(
        (leaf := g()) * 2, leaf, x(2, 2, 3), is_grads_batched=True
    ),
    "hook of a tensor": lambda: hooked("tensor"),
    "hook of a node": lambda: hooked("node"),
    "hook before a node": lambda: hooked("node before"),
    "hook after accumulation": lambda: hooked("accumulated"),
    "function that raises": lambda: Raises.apply(g(), "forward"),
    "function that raises backward": lambda: Raises.apply(g(), "").sum().backward(),  # type: ignore[union-attr]
    "function that raises in grad": lambda: torch.autograd.grad(
        Raises.apply((leaf := g()), "").sum(),  # type: ignore[union-attr]
        leaf,
    ),
    "saved by what raises": lambda: saved_by(raising, lambda t: t),
    "restored by what raises": lambda: saved_by(lambda t: t, raising),
    "saved on the CPU": lambda: saved_by(lambda t: t.cpu(), lambda t: t.to(d)),
    "restored on the CPU": lambda: saved_by(lambda t: t.cpu(), lambda t: t),
    "backward twice": lambda: ((y := g().exp().sum()).backward(), y.backward()),
    "backward of many": (g() * 2).backward,
    "gradient of another device": lambda: (g() * 2).backward(torch.ones(2, 3)),
    "gradient of another shape": lambda: (g() * 2).backward(x(5)),
    "gradient of nothing": lambda: torch.autograd.grad(g().sum(), x()),
    "changed after it was saved": lambda: ((y := g().exp()).add_(1), y.sum().backward()),
    "a view of a leaf changed": lambda: g()[0].add_(1),
    "checkpoint that raises": lambda: checkpoint(raising, g(), use_reentrant=False),
    "anomaly": anomalous,
    "print of everything": lambda: [repr(t) for t in (x(), g(), coo(x(2)), csr(x(2)), x() > 0)],
    "a device of text": lambda: x().to("pjrt:x"),
    "no such device index": lambda: x().to("pjrt:-2"),
    "histogram on the host": lambda: torch.histogram(x(), 3),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2, device=d))(
        x(2, 2)
    ),
    "packed sequence": lambda: nn.utils.rnn.pack_sequence([g(2, 3), g(1, 3)]).data.sum().backward(),
    "lstm of a packed sequence": lambda: (
        nn.LSTM(3, 2, device=d)(nn.utils.rnn.pack_sequence([g(2, 3), g(1, 3)]))[0]
        .data.sum()
        .backward()
    ),
}


ODD: dict[str, Odd] = {**STORAGES, **MADE, **KINDS, **ACTIONS}


def used(result: object) -> None:
    """Look at a result, and go back through it."""
    repr(result)
    if isinstance(result, torch.Tensor) and result.requires_grad and result.grad_fn is not None:
        result.sum().backward()


def main() -> None:
    warnings.simplefilter("ignore")
    names = list(ODD)
    for name in names[int(sys.argv[1]) :]:
        print(f"begins {name}", flush=True)
        try:
            used(ODD[name]())
            print("gave a result", flush=True)
        except Exception as error:
            text = str(error).partition("\n")[0]
            print(f"raised {type(error).__name__}: {text}", flush=True)
    assert (x() + 1).tolist() == [[2.0] * 3] * 2
    print("ends", flush=True)


if __name__ == "__main__":
    main()
