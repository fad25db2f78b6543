"""A plan applied: marks on parameters, buffers, gradients and optimizer state, and on values of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from torch_pjrt.extend import is_pjrt
from torch_pjrt_spmd import in_use, marks
from torch_pjrt_spmd.autoshard.spreading import SpreadAsPlanned
from torch_pjrt_spmd.distributing import parameters_stay_tied, place_parameter
from torch_pjrt_spmd.marking import distribute_tensor, mark_sharding
from torch_pjrt_spmd.roles import STATE
from torch_pjrt_spmd.spec import Entry, ShardingError

if TYPE_CHECKING:
    from torch_pjrt_spmd.autoshard.plan import Plan
    from torch_pjrt_spmd.mesh import Mesh

_AGAIN = "_computed_again_by_auto_shard"


def apply(
    plan: Plan,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    *,
    activations: bool,
) -> None:
    mesh = mesh_of(plan)
    specs = {name: p.spec for p in plan.placements for name in p.names}
    if mesh.target is None:
        in_use.use_mesh(mesh)
    if model is not None:
        with parameters_stay_tied(model):
            for path, part in model.named_modules():
                front = f"{path}." if path else ""
                for name in list(part._parameters):
                    place_parameter(part, name, mesh, specs.get(front + name, ()))
                for name, buffer in part._buffers.items():
                    if buffer is not None and is_pjrt(buffer):
                        mark_sharding(buffer, mesh, specs.get(front + name, ()))
        for path in plan.rematerialized:
            _compute_again(model.get_submodule(path))
        if activations:
            _mark_values(plan, model, mesh)
    if optimizer is not None:
        _follow(plan, optimizer, model, mesh, specs)


def _compute_again(module: torch.nn.Module) -> None:
    """Have a module compute its activations again in backward; once, however often it is asked."""
    if _AGAIN in module.__dict__:
        return
    forward = module.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.__dict__[_AGAIN] = True
    module.forward = again


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


def _mark_values(plan: Plan, model: torch.nn.Module, mesh: Mesh) -> None:
    """Have gradients lie as planned, and what programs of the model compute."""
    for name, parameter in model.named_parameters():
        spec = plan.gradients.get(name)
        if spec is not None:
            marks.mark_gradient(parameter, marks.sharding(*mesh.written(), spec), mesh.target)
    if plan.values is not None:
        marks.mark_programs(model, SpreadAsPlanned(mesh, plan.values), mesh)


def _follow(
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None,
    mesh: Mesh,
    specs: dict[str, tuple[Entry, ...]],
) -> None:
    """Mark the optimizer's state that lies otherwise than its parameters; now, or after the first step."""
    parameters = {} if model is None else dict(model.named_parameters())
    left: dict[tuple[torch.nn.Parameter, str], tuple[Entry, ...]] = {}
    for placement in plan.placements:
        for path in placement.names if placement.role == STATE else ():
            name, _, key = path.rpartition("/")
            if name in parameters and placement.spec != specs.get(name):
                left[parameters[name], key] = placement.spec

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
