"""`parallelize_module`: PyTorch's plans of tensor parallelism as annotations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

from torch import nn

from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.distributing import parameters_stay_tied
from torch_pjrt_spmd.in_use import current_mesh
from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.spec import ShardingError
from torch_pjrt_spmd.sub_mesh import SubMesh

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from torch_pjrt_spmd.any_mesh import AnyMesh

    Plan = ParallelStyle | Mapping[str, "Plan"]


def parallelize_module(
    module: nn.Module,
    device_mesh: AnyMesh | None = None,
    parallelize_plan: Plan | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """PyTorch's `parallelize_module`: weights and activations lie on a mesh as a plan says.

    device_mesh       of one axis: `mesh["model"]` of one with several; None: the mesh in use.
    parallelize_plan  a style of `torch.distributed.tensor.parallel`, or styles by the names of submodules, in
                      which each part between dots may have wildcards: `{"blocks.*.up": ColwiseParallel()}`.
    src_data_rank     has no meaning in one process.

    Returns the module. Weights are marked, inputs and outputs by hooks, with PyTorch's defaults. Tensors are
    global before, in and after each module, so `use_local_output` has no meaning, and code for the local
    number of heads is to be left out. Where a layout is `Partial`, XLA makes the sum when it is needed.
    Weights of the device stay the objects that they are, those of the CPU are replaced by new ones there.

    A name that matches nothing is warned of, as by PyTorch. Raises `ShardingError` for a mesh of several
    axes, a module with two styles that place weights, and a dim that the chips do not divide: of a weight
    now, of an activation in the call. `UnsupportedError` for styles of a user's own and for modules that a
    style is not for; `TypeError` for what is no plan.

        parallelize_module(model, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    """
    given = current_mesh() if device_mesh is None else device_mesh
    if given is None:
        raise ShardingError("No mesh is given, and none is in use.", hint="use_mesh(mesh)")
    mesh = as_mesh(given)
    if len(mesh.axis_names) != 1:
        raise ShardingError(
            "A plan is for one axis of a mesh.",
            saw=f"the axes {mesh.axis_names}",
            hint=f"mesh[{mesh.axis_names[-1]!r}]",
        )
    if parallelize_plan is None:
        warnings.warn("without a plan, parallelize_module does nothing", stacklevel=2)
        return module
    with parameters_stay_tied(module):
        _follow(parallelize_plan, module, mesh, "")
    return module


def _follow(plan: Any, module: nn.Module, mesh: Mesh | SubMesh, name: str) -> None:
    from torch.distributed.tensor.parallel import ParallelStyle

    from torch_pjrt_spmd.styles import apply

    if isinstance(plan, ParallelStyle):
        apply(plan, module, mesh, name)
        return
    if not isinstance(plan, Mapping):
        raise TypeError(
            "a plan is a style of torch.distributed.tensor.parallel, or such styles by the names of "
            f"modules, saw {type(plan).__name__}"
        )
    for pattern, part in plan.items():
        found = _matching(module, pattern, name)
        if not found:
            warnings.warn(
                f"no module of {type(module).__name__} is named as {pattern!r} in the plan",
                stacklevel=3,
            )
        for full, submodule in found:
            _follow(part, submodule, mesh, full)


def _matching(module: nn.Module, pattern: str, name: str) -> list[tuple[str, nn.Module]]:
    """The submodules, with their full names, whose names match part by part."""
    found = [(name, module)]
    for part in pattern.split(".") if pattern else ():
        found = [
            (f"{above}.{child}" if above else child, submodule)
            for above, parent in found
            for child, submodule in parent.named_children()
            if fnmatch(child, part)
        ]
    return found
