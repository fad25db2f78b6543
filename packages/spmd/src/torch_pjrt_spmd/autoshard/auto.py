"""`auto_shard`: one call that finds how to spread a model or a training step, and marks it so."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt_spmd import marks
from torch_pjrt_spmd.autoshard import solver
from torch_pjrt_spmd.autoshard.applying import apply as apply_to
from torch_pjrt_spmd.autoshard.chips import Chip, chip_named
from torch_pjrt_spmd.autoshard.estimates import plan_of
from torch_pjrt_spmd.autoshard.plan import Plan
from torch_pjrt_spmd.autoshard.recording import Recorded, record
from torch_pjrt_spmd.autoshard.said import check_axes, said_of
from torch_pjrt_spmd.autoshard.searching import Search
from torch_pjrt_spmd.spec import Entry, checked

if TYPE_CHECKING:
    from torch_pjrt_spmd.mesh import Mesh

MakeOptimizer = Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]
Specs = Mapping[str, Sequence[Any]]


def auto_shard(
    model: torch.nn.Module | Callable[..., Any],
    example_inputs: Any,
    mesh: Mesh | Mapping[str, int],
    *,
    optimizer: torch.optim.Optimizer | MakeOptimizer | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    memory_per_device: int | None = None,
    chip: str | Chip | None = None,
    across: Sequence[str] = (),
    plan: str | Path | Specs | None = None,
    seconds: float = 6.0,
    apply: bool = True,
) -> Plan:
    """Find how to spread a model, or a training step, over a mesh; nobody has to mark anything.

    model           a module, of any device; or a function: a training step, with the model and the optimizer
                    that it closes over on the device `pjrt`. Nothing is computed; its Python runs twice.
    example_inputs  a tensor, or a tuple of what it takes. Of tensors only shape and dtype matter.
    mesh            a `Mesh`. Or sizes of axes, `{"data": 4, "model": 8}`: a plan to look at.
    optimizer       of the module: with one, the plan is of a training step. An optimizer of the module's
                    parameters, or what makes one of parameters: `torch.optim.AdamW`.
    loss            a scalar of what the module returns; the sum of it, unless given.
    memory_per_device   bytes that a chip may use; nine tenths of what it has, unless given.
    chip            whose figures count: `v5e`, `h100`, a `Chip` of your own; that of the mesh, unless given.
    across          axes that go over slices or nodes, by the slower network.
    plan            a file that `Plan.save` wrote, or specs by name, of tensors and of modules' results: these
                    are kept, the rest is found. So are marks that the model's parameters have already
                    (`mark_sharding`).
    seconds         for all solving, after recording and building, which take as long as they take.
    apply           mark what the plan is about: the module's parameters, and those that a step's optimizer
    has.

    Returns the `Plan`. Raises `NoPlan` where the memory does not do, which says what would; `ShardingError`
    for specs that do not fit; `LoweringError` where the function needs the value of a tensor.

        plan = auto_shard(model, x, Mesh((2, 4), ("data", "model")), optimizer=torch.optim.AdamW)
        print(plan)
    """
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    sizes = dict(mesh) if isinstance(mesh, Mapping) else mesh.root.sizes
    check_axes(across, sizes)
    figures = chip_named(chip if chip is not None else _chip_of(mesh))
    limit = int(0.9 * figures.memory_bytes) if memory_per_device is None else memory_per_device
    began = time.perf_counter()
    recorded = _recorded(model, optimizer, loss, inputs)
    tensors = recorded.parameters
    if isinstance(model, torch.nn.Module):
        tensors = dict(model.named_parameters())
    said = said_of(plan, _marks_of(tensors.items(), mesh), recorded, sizes)
    recorded = _with_gradients(recorded, mesh)
    took = {"recording": time.perf_counter() - began}

    def half() -> Recorded | None:
        try:
            return _recorded(model, optimizer, loss, tree_map(_half, inputs))
        except Exception:  # whatever a function says of a batch that it does not take
            return None

    began = time.perf_counter()
    search = Search(recorded, sizes, figures, limit, across, said, _is_of_cpus(mesh))
    built = search.first_built()
    took["building"] = time.perf_counter() - began
    began = time.perf_counter()
    solver.prepare()
    took["compiling"] = time.perf_counter() - began
    began = time.perf_counter()
    built, solution = search.best(built, seconds, half)
    took["solving"] = time.perf_counter() - began
    target = None if isinstance(mesh, Mapping) else mesh.root
    n_inputs = len(tree_leaves(list(inputs)))
    found = plan_of(built, solution, took, target, said, n_inputs, across)
    if apply and target is not None:
        _apply(found, model, optimizer, recorded)
    return found


def _recorded(
    model: torch.nn.Module | Callable[..., Any],
    optimizer: torch.optim.Optimizer | MakeOptimizer | None,
    loss: Callable[[Any], torch.Tensor] | None,
    inputs: tuple[Any, ...],
) -> Recorded:
    if not isinstance(model, torch.nn.Module):
        return record(model, inputs)
    twin = _without_content(model)
    return record(_step(twin, model, optimizer, loss), inputs, twin)


def _half(x: Any) -> Any:
    """A tensor of half the batch, without content."""
    if not isinstance(x, torch.Tensor) or not x.dim() or x.shape[0] % 2:
        return x
    return torch.empty((x.shape[0] // 2, *x.shape[1:]), dtype=x.dtype, device="meta")


def _is_of_cpus(mesh: Mesh | Mapping[str, int]) -> bool:
    if isinstance(mesh, Mapping) or mesh.root.target is not None:
        return False
    return mesh.root.jax_mesh.devices.flat[0].platform == "cpu"


def _with_gradients(recorded: Recorded, mesh: Mesh | Mapping[str, int]) -> Recorded:
    """With gradients among the results, where a program ends with the optimizer's step, while they are there.

    A program that is compiled ahead ends with the function.
    """
    if not isinstance(mesh, Mapping) and mesh.root.target is not None:
        return recorded
    return replace(recorded, results=tuple({*recorded.results, *recorded.gradients.values()}))


def _chip_of(mesh: Mesh | Mapping[str, int]) -> str:
    """The name of the mesh's chips, as far as the table knows them."""
    if isinstance(mesh, Mapping):
        return "cpu"
    if mesh.root.target is not None:
        return mesh.root.target
    kind = str(getattr(mesh.root.jax_mesh.devices.flat[0], "device_kind", "cpu")).lower()
    named = {"v5 lite": "v5e", "v5litepod": "v5e", "v6 lite": "v6e", "tpu v4": "v4", "v5": "v5p"}
    for text, name in {**named, "h100": "h100", "h200": "h200", "b200": "b200"}.items():
        if text in kind:
            return name
    return "cpu"


def _marks_of(tensors: Any, mesh: Mesh | Mapping[str, int]) -> dict[str, tuple[Entry, ...]]:
    """What the user has marked for the mesh already."""
    if isinstance(mesh, Mapping):
        return {}
    found = {}
    for name, tensor in tensors:
        how = marks.mark_for(tensor, mesh.root.target)
        if how is not None and tuple(how.mesh.axis_names) == mesh.root.axis_names:
            found[name] = checked(tuple(tensor.shape), mesh.root, tuple(how.spec))
    return found


def _step(
    twin: torch.nn.Module,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | MakeOptimizer | None,
    loss: Callable[[Any], torch.Tensor] | None,
) -> Callable[..., Any]:
    """A step on a copy of the module without content, on the device."""
    if optimizer is None:

        def forward(*inputs: Any) -> Any:
            with torch.no_grad():
                return twin(*inputs)

        return forward
    of_twin = _optimizer_of(twin, model, optimizer)

    def step(*inputs: Any) -> torch.Tensor:
        result = twin(*inputs)
        value = loss(result) if loss is not None else _summed(result)
        value.backward()
        of_twin.step()
        of_twin.zero_grad()
        return value.detach()

    return step


def _summed(result: Any) -> torch.Tensor:
    tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.stack([x.sum() for x in tensors]).sum() if len(tensors) != 1 else tensors[0].sum()


def _without_content(model: torch.nn.Module) -> torch.nn.Module:
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        meta = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            meta = torch.nn.Parameter(meta, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = meta
    return copy.deepcopy(model, memo).to_empty(device="pjrt")


def _optimizer_of(
    twin: torch.nn.Module,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | MakeOptimizer,
) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizer([p for p in twin.parameters() if p.requires_grad])
    twins = dict(zip(map(id, model.parameters()), twin.parameters(), strict=True))
    groups = [
        {**group, "params": [twins[id(p)] for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    make: Any = type(optimizer)
    return make(groups)


def _apply(plan: Plan, model: Any, optimizer: Any, recorded: Recorded) -> None:
    if isinstance(model, torch.nn.Module):
        plan.apply(model, optimizer if isinstance(optimizer, torch.optim.Optimizer) else None)
    else:
        everything = recorded.roots, recorded.loose, recorded.optimizers
        apply_to(plan, *everything, activations=True)
