"""A plan applied: marks on parameters, buffers, gradients and optimizer state, and on values of programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_pjrt.extend import is_pjrt
from torch_pjrt_spmd import in_use, marks
from torch_pjrt_spmd.autoshard.again import compute_again, keep_all
from torch_pjrt_spmd.autoshard.spreading import SpreadAsPlanned
from torch_pjrt_spmd.distributing import parameters_stay_tied, place_parameter
from torch_pjrt_spmd.marking import distribute_tensor, mark_sharding
from torch_pjrt_spmd.roles import STATE
from torch_pjrt_spmd.spec import Entry, ShardingError

if TYPE_CHECKING:
    from torch_pjrt_spmd.autoshard.plan import Plan
    from torch_pjrt_spmd.mesh import Mesh


def apply(
    plan: Plan,
    modules: Mapping[str, torch.nn.Module],
    loose: Mapping[str, torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    activations: bool,
) -> None:
    """Mark what the plan is about.

    modules   by what the names of their tensors begin with in the plan. loose: parameters that are in none.

    Raises `ShardingError`, before anything is marked, for a parameter that the plan does not know.
    """
    mesh = mesh_of(plan)
    specs = {**plan.unread, **{name: p.spec for p in plan.placements for name in p.names}}
    for front, module in modules.items():
        _check_known(plan, front, module)
    if mesh.target is None:
        in_use.use_mesh(mesh)
    for name, tensor in loose.items():
        mark_sharding(tensor, mesh, specs.get(name, ()))
    for front, module in modules.items():
        _place(module, front, mesh, specs)
        for name, part in module.named_modules():
            again = (front + name).rstrip(".") in plan.rematerialized
            (compute_again if again else keep_all)(part)
    parameters = dict(loose)
    for front, module in modules.items():
        parameters |= {front + name: p for name, p in module.named_parameters()}
    if activations:
        _mark_values(plan, parameters, [*modules.values()] or optimizers, mesh)
    for optimizer in optimizers:
        _follow(plan, optimizer, parameters, mesh, specs)


def _check_known(plan: Plan, front: str, module: torch.nn.Module) -> None:
    names = [front + name for name, _ in module.named_parameters()]
    unknown = [name for name in names if name not in plan.names]
    if unknown:
        fronts = sorted({name.split(".")[0] for name in plan.names if name[:1].isdigit()})
        near = get_close_matches(unknown[0], plan.names, 3)
        raise ShardingError(
            f"The plan does not know the parameter `{unknown[0]}`.",
            saw=f"a module of which {len(unknown)} of {len(names)} parameters are not in the plan",
            expected=f"names such as {', '.join(map(repr, near or sorted(plan.names)[:3]))}",
            hint="of a step with several modules, `plan.apply(module, within=...)` says which one it is: "
            + ", ".join(map(repr, fronts))
            if fronts and not front
            else "plans are applied to what they were made of",
        )


def _place(
    module: torch.nn.Module, front: str, mesh: Mesh, specs: Mapping[str, tuple[Entry, ...]]
) -> None:
    """Each tensor by the name under which it comes first, as in `named_parameters`; tied ones once."""
    done: set[int] = set()
    with parameters_stay_tied(module):
        for path, part in module.named_modules():
            own = front + (f"{path}." if path else "")
            for name, parameter in list(part._parameters.items()):
                if parameter is not None and id(parameter) not in done:
                    done.add(id(parameter))
                    place_parameter(part, name, mesh, specs.get(own + name, ()))
            for name, buffer in list(part._buffers.items()):
                if buffer is None or id(buffer) in done:
                    continue
                done.add(id(buffer))
                if is_pjrt(buffer):
                    mark_sharding(buffer, mesh, specs.get(own + name, ()))
                elif buffer.device.type == "cpu" and mesh.target is None:
                    part._buffers[name] = distribute_tensor(buffer, mesh, specs.get(own + name, ()))


def placed(plan: Plan, inputs: tuple[Any, ...]) -> Any:
    mesh = mesh_of(plan)
    leaves, how = tree_flatten(list(inputs))
    specs = iter(plan.input_specs)
    found = [
        distribute_tensor(x, mesh, next(specs, None) or ()) if isinstance(x, torch.Tensor) else x
        for x in leaves
    ]
    made = tree_unflatten(found, how)
    return made[0] if len(made) == 1 else tuple(made)


def mesh_of(plan: Plan) -> Mesh:
    if plan.target is None:
        raise ShardingError(
            "The plan was made for sizes of axes, not for a mesh of chips.",
            saw=f"{dict(plan.mesh)}",
            hint="auto_shard(..., mesh=Mesh(...)) makes one that can be applied",
        )
    return plan.target


def _mark_values(
    plan: Plan, parameters: Mapping[str, torch.Tensor], owners: Sequence[Any], mesh: Mesh
) -> None:
    """Have gradients lie as planned, and what programs compute as long as the owners are there."""
    for name, parameter in parameters.items():
        spec = plan.gradients.get(name)
        if spec is not None:
            marks.mark_gradient(parameter, marks.sharding(*mesh.written(), spec), mesh.target)
    if plan.values is not None:
        added = SpreadAsPlanned(mesh, plan.values)
        for owner in owners:
            marks.mark_programs(owner, added, mesh)


def _follow(
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.Tensor],
    mesh: Mesh,
    specs: Mapping[str, tuple[Entry, ...]],
) -> None:
    """Mark the optimizer's state that lies otherwise than its parameters; now, or after the first step."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left: dict[tuple[torch.Tensor, str], tuple[Entry, ...]] = {}
    for name, key, spec in _states(plan):
        parameter = parameters.get(name)
        if parameter is not None and id(parameter) in own and spec != specs.get(name):
            left[parameter, key] = spec

    def mark(*_: object) -> None:
        for (parameter, key), spec in list(left.items()):
            tensor = optimizer.state.get(parameter, {}).get(key)
            if isinstance(tensor, torch.Tensor) and is_pjrt(tensor):
                mark_sharding(tensor, mesh, spec)
                del left[parameter, key]
        if not left and handles:
            handles.pop().remove()

    handles: list[Any] = []
    mark()
    if left:
        handles.append(optimizer.register_step_post_hook(mark))


def _states(plan: Plan) -> Iterator[tuple[str, str, tuple[Entry, ...]]]:
    """Of each tensor of optimizer state its parameter's name, its own, and how it lies."""
    for placement in plan.placements:
        for path in placement.names if placement.role == STATE else ():
            name, _, key = path.rpartition("/")
            yield name, key, placement.spec
