"""Programs on tensors of the host: they are compiled for the device, and their results are brought back.

What Dynamo traced is written anew as a program of the device (each device that it names becomes `pjrt`), and
compiled as such. A call brings the inputs there and the results back; gradients follow the same way.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from torch_pjrt.extend import buffer_of, is_pjrt
from torch_pjrt.plugin import aten

_DEVICE = torch.device("pjrt")
Compile = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]

# They make tensors where PyTorch's default device is, if no device is given.
_FACTORIES = frozenset(
    (
        *(torch.arange, torch.bartlett_window, torch.blackman_window, torch.empty, torch.eye),
        *(torch.full, torch.hamming_window, torch.hann_window, torch.kaiser_window),
        *(torch.linspace, torch.logspace, torch.ones, torch.rand, torch.randint, torch.randn),
        *(torch.empty_strided, torch.randperm, torch.tensor, torch.tril_indices),
        *(torch.triu_indices, torch.zeros, torch.scalar_tensor, torch.as_tensor),
    )
)


def is_on_host(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether no tensor of what Dynamo traced is on the device."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        for x in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(x, torch.Tensor):
                tensors.append(x)
    return all(x.device.type == "cpu" for x in tensors)


def for_host(module: GraphModule, inputs: Sequence[Any], compile_graph: Compile) -> Any:
    """The compiled module as a function of tensors of the host."""
    mode = detect_fake_mode(inputs)
    sees_storage = any("as_strided" in str(n.target) for n in module.graph.nodes)
    bring = _Bringing(sees_storage, _read_only_as_numbers(module))
    fakes = [_fake(x, mode) for x in inputs]
    with mode or nullcontext(), torch.no_grad():
        moved = bring.all_of(fakes)
    moved = [
        x.requires_grad_(host.requires_grad) if isinstance(x, torch.Tensor) else x
        for host, x in zip(inputs, moved, strict=True)
    ]
    compiled = compile_graph(_on_device(module), moved)

    def run(*args: Any) -> Any:
        given = bring.all_of(args)
        versions = [x._version if isinstance(x, torch.Tensor) else 0 for x in given]
        results = compiled(*given)
        for arg, x, version in zip(args, given, versions, strict=True):
            if isinstance(x, torch.Tensor) and x._version != version:
                _write_back(arg, x)
        return _Brought(args, given).all_of(results)

    return run


def _read_only_as_numbers(module: GraphModule) -> frozenset[int]:
    """Positions of inputs of which the program only takes the `item()`: Dynamo's way to pass a number."""
    return frozenset(
        i
        for i, node in enumerate(module.graph.find_nodes(op="placeholder"))
        if node.users and all(n.op == "call_method" and n.target == "item" for n in node.users)
    )


def _fake(x: Any, mode: Any) -> Any:
    """What Dynamo traced `x` as."""
    if mode is None or not isinstance(x, torch.Tensor) or isinstance(x, FakeTensor):
        return x
    return mode.from_tensor(x)


class _Bringing:
    """Brings tensors of the host to the device, as they lie in memory: those that share it still do.

    Those at the positions `staying` stay.
    """

    def __init__(self, sees_storage: bool, staying: frozenset[int] = frozenset()) -> None:
        self.sees_storage = sees_storage
        self.staying = staying

    def all_of(self, args: Sequence[Any]) -> list[Any]:
        """The same on the device; gradients follow, but those of tensors that share memory are apart."""
        tensors = [
            x for i, x in enumerate(args) if isinstance(x, torch.Tensor) and i not in self.staying
        ]
        on_storage = Counter(
            x.untyped_storage()._cdata for x in {id(x): x for x in tensors}.values()
        )
        storages: dict[Any, torch.Tensor] = {}
        known: dict[int, Any] = {}
        for x in tensors:
            shared = on_storage[x.untyped_storage()._cdata] > 1
            if id(x) not in known:
                known[id(x)] = self._one(x, storages, shared)
        return [x if i in self.staying else known.get(id(x), x) for i, x in enumerate(args)]

    def _one(
        self, x: torch.Tensor, storages: dict[Any, torch.Tensor], shared: bool
    ) -> torch.Tensor:
        if x.is_conj() or x.is_neg() or (x.requires_grad and not self.sees_storage):
            return x.to(_DEVICE)
        if not shared and not self.sees_storage:
            if _is_dense(x):
                return x.to(_DEVICE)
            extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
            flat = x.as_strided((extent,), (1,), x.storage_offset()).to(_DEVICE)
            return flat.as_strided(x.shape, x.stride(), 0)
        key = x.untyped_storage()._cdata, x.dtype
        if key not in storages:
            n = x.untyped_storage().nbytes() // x.dtype.itemsize
            storages[key] = x.detach().as_strided((n,), (1,), 0).to(_DEVICE)
        return storages[key].as_strided(x.shape, x.stride(), x.storage_offset())


class _Brought:
    """Results on the host: those that share memory with an argument, or with each other, still do.

    Results that need gradients are apart from each other.
    """

    def __init__(self, args: Sequence[Any], given: Sequence[Any]) -> None:
        # By the buffer: a tensor of the host, and one of the device, which lie in memory alike.
        self.known = {
            id(buffer_of(x)): (arg, x) for arg, x in zip(args, given, strict=True) if is_pjrt(x)
        }

    def all_of(self, results: Any) -> Any:
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        buffers = Counter(id(buffer_of(x)) for x in results if is_pjrt(x))
        return [self.one(x, buffers) for x in results]

    def one(self, result: Any, buffers: Counter[int]) -> Any:
        if not is_pjrt(result):
            return result
        buffer = id(buffer_of(result))
        known = self.known.get(buffer)
        if known is None:
            alone = buffers[buffer] == 1 and _is_dense(result)
            if alone or result.requires_grad or result.is_conj() or result.is_neg():
                return result.cpu()
            n = result.untyped_storage().nbytes() // result.dtype.itemsize
            whole = result.as_strided((n,), (1,), 0)
            known = self.known[buffer] = whole.cpu(), whole
        on_host, on_device = known
        if on_device is result:
            return on_host
        if on_host.dtype != result.dtype or on_host.requires_grad != result.requires_grad:
            return result.cpu()
        offset = result.storage_offset() - on_device.storage_offset() + on_host.storage_offset()
        return on_host.as_strided(result.shape, result.stride(), offset)


def _is_dense(x: torch.Tensor) -> bool:
    return aten.is_non_overlapping_and_dense(x)


def _write_back(arg: torch.Tensor, x: torch.Tensor) -> None:
    with torch.no_grad():
        arg.copy_(x)


def _on_device(module: GraphModule) -> GraphModule:
    """The module with `pjrt` for each device that it names, and its constants there."""
    graph = copy.deepcopy(module.graph)
    moved = GraphModule(module, graph)
    moved.meta = dict(module.meta)
    for name, constant in [*moved.named_buffers(), *_plain_tensors(moved)]:
        owner = moved.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], constant.to(_DEVICE))
    for name, child in list(moved.named_children()):
        if isinstance(child, GraphModule):
            setattr(moved, name, _on_device(child))
    for node in graph.nodes:
        node.args = map_aggregate(node.args, _device_of_argument)
        node.kwargs = map_aggregate(node.kwargs, _device_of_argument)
        if node.kwargs.get("device") == "cpu":
            node.kwargs = {**node.kwargs, "device": _DEVICE}
        if node.target == "cpu" and node.op == "call_method":
            node.target, node.args = "to", (node.args[0], _DEVICE)
        elif _names_a_device(node):
            node.args = tuple("pjrt" if a == "cpu" else a for a in node.args)
        elif _is_factory(node) and node.kwargs.get("device") is None:
            node.kwargs = {**node.kwargs, "device": _DEVICE}
    moved.recompile()
    return moved


def _plain_tensors(module: GraphModule) -> list[tuple[str, torch.Tensor]]:
    return [(n, x) for n, x in vars(module).items() if isinstance(x, torch.Tensor)]


def _device_of_argument(argument: Any) -> Any:
    return _DEVICE if argument == torch.device("cpu") else argument


def _is_factory(node: torch.fx.Node) -> bool:
    """Whether it makes a tensor of what is none. `torch.normal` does where it is told a size."""
    if node.target is torch.normal:
        return len(node.args) > 2 or "size" in node.kwargs
    return node.target in _FACTORIES


def _names_a_device(node: torch.fx.Node) -> bool:
    """Whether text among its arguments is a device."""
    if node.op == "call_method":
        return node.target in ("to", "type")
    return "autocast" in getattr(node.target, "__name__", "")
