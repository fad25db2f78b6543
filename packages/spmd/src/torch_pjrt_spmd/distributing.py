"""`distribute_module`: a module's parameters and buffers on a mesh, and functions around its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from torch_pjrt.extend import is_pjrt
from torch_pjrt_spmd import marks
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.in_use import current_mesh
from torch_pjrt_spmd.marking import distribute_tensor, mark_sharding
from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.spec import ShardingError, Spec
from torch_pjrt_spmd.sub_mesh import SubMesh

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh

# PyTorch's own name for it, so that either function refuses what the other has had.
_APPLIED = "_distribute_module_applied"


def distribute_module(
    module: nn.Module,
    device_mesh: AnyMesh | None = None,
    partition_fn: Callable[[str, nn.Module, Any], None] | None = None,
    input_fn: Callable[[nn.Module, Any, Any], Any] | None = None,
    output_fn: Callable[[nn.Module, Any, Any], Any] | None = None,
) -> nn.Module:
    """PyTorch's `distribute_module` by annotations: all of a module's tensors lie on a mesh.

    device_mesh   any kind of mesh, or some axes of one; None: the mesh in use.
    partition_fn  called with the name of each submodule, the submodule and the mesh, to place its tensors:
                  by `mark_sharding`, or by registering parameters made of `distribute_tensor`.
    input_fn      called with the module, its positional inputs and the mesh; returns the inputs.
    output_fn     called with the module, its output and the mesh; returns the output.

    Returns the module. What `partition_fn` has not placed gets a copy on each chip along the axes that are
    given. Tensors of the device stay the objects that they are; those of the CPU become new ones, on the
    device, each chip getting its part alone, and parameters that were one stay one.

    Raises `ShardingError` for a module that has been distributed before and where no mesh is given or in use,
    `TypeError` for functions of other than three arguments and for tensors of another device.
    """
    given = current_mesh() if device_mesh is None else device_mesh
    if given is None:
        raise ShardingError("No mesh is given, and none is in use.", hint="use_mesh(mesh)")
    mesh = as_mesh(given)
    if getattr(module, _APPLIED, False):
        raise ShardingError(
            "A module is distributed once.",
            saw=f"{type(module).__name__}, which has been already",
            hint="one style of `parallelize_module`, or one `distribute_module`, for each module",
        )
    for role, function in (("input_fn", input_fn), ("output_fn", output_fn)):
        if function is not None and len(inspect.signature(function).parameters) != 3:
            raise TypeError(f"{role} takes a module, a value and a mesh, saw {function!r}")
    with parameters_stay_tied(module):
        for name, part in list(module.named_modules()):
            if partition_fn is not None:
                partition_fn(name, part, given)
            _place_the_rest(part, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(_Before(input_fn, given))
    if output_fn is not None:
        module.register_forward_hook(_After(output_fn, given))
    setattr(module, _APPLIED, True)
    return module


def place_parameter(module: nn.Module, name: str, mesh: Mesh | SubMesh, spec: Spec) -> None:
    """Have a module's parameter lie on a mesh: itself if it is on the device, else a new one there."""
    parameter = module._parameters[name]
    if parameter is None:
        return
    of_cpu = not is_pjrt(parameter) and parameter.device.type == "cpu"
    if of_cpu and mesh.root.target is None:
        placed = distribute_tensor(parameter.detach(), mesh, spec)
        parameter = nn.Parameter(placed, requires_grad=parameter.requires_grad)
        module.register_parameter(name, parameter)
    mark_sharding(parameter, mesh, spec)


@contextmanager
def parameters_stay_tied(module: nn.Module) -> Iterator[None]:
    """Have a parameter that is replaced in the block be replaced wherever the module uses it."""
    before = [
        (part, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None
    ]
    yield
    new = {
        id(old): part._parameters[name]
        for part, name, old in before
        if part._parameters.get(name) is not old
    }
    for part, name, old in before:
        if part._parameters.get(name) is old and id(old) in new:
            part.register_parameter(name, new[id(old)])


def _place_the_rest(module: nn.Module, mesh: Mesh | SubMesh) -> None:
    target = mesh.root.target
    for name, parameter in list(module._parameters.items()):
        if parameter is None:
            continue
        how = marks.mark_for(parameter, target)
        if how is None:
            place_parameter(module, name, mesh, ())
        else:
            # A `Parameter` that was made of the marked tensor is another leaf.
            marks.mark(parameter, how, target)
    for name, buffer in module._buffers.items():
        if buffer is not None and marks.mark_for(buffer, target) is None:
            module._buffers[name] = distribute_tensor(buffer, mesh, ())


@dataclass(frozen=True)
class _Before:
    """A forward pre-hook that can be copied and pickled if its function can."""

    function: Callable[[nn.Module, Any, Any], Any]
    mesh: Any

    def __call__(self, module: nn.Module, inputs: Any) -> Any:
        return self.function(module, inputs, self.mesh)


@dataclass(frozen=True)
class _After:
    function: Callable[[nn.Module, Any, Any], Any]
    mesh: Any

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return self.function(module, output, self.mesh)
