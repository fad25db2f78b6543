"""PyTorch's styles of parallelism, which plans are made of, as annotations.

    style                      weights                                    input              output
    ColwiseParallel            linear: all on dim 0; embedding: dim 1     copies             the last dim
    RowwiseParallel            linear: weight on dim 1; embedding: dim 0  linear: last dim   copies
    SequenceParallel           copies                                     the sequence dim   the same
    PrepareModuleInput         -                                          as it says         -
    PrepareModuleOutput        -                                          -                  as it says
    PrepareModuleInputOutput   -                                          as it says         as it says

Inputs and outputs have PyTorch's defaults, and lie otherwise where the style says so. What a style says of
local tensors has no meaning where tensors are global.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import nn

from torch_pjrt.errors import UnsupportedError
from torch_pjrt_spmd.arranging import (
    Arranged,
    EachInput,
    EachOutput,
    FirstInput,
    Output,
    steps,
)
from torch_pjrt_spmd.distributing import distribute_module, place_parameter
from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.sub_mesh import SubMesh

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    AnyOurs = Mesh | SubMesh
    Apply = Callable[[Any, nn.Module, AnyOurs, str], None]


def apply(style: ParallelStyle, module: nn.Module, mesh: Mesh | SubMesh, name: str) -> None:
    """Have a module's weights, inputs and outputs lie on the mesh, of one axis, as the style says.

    name  of the module, for errors.

    Raises `UnsupportedError` for a style that is none of PyTorch's own, and for a module that the style is
    not for.
    """
    found = _styles().get(type(style))
    if found is None:
        raise UnsupportedError(
            f"`{type(style).__name__}` is no style of PyTorch's own: what it does to tensors is unknown.",
            expected=", ".join(known.__name__ for known in _styles()),
            hint="distribute_module(module, mesh, partition_fn, input_fn, output_fn)",
        )
    found(style, module, mesh, f"`{name}` ({type(style).__name__})")


@cache
def _styles() -> dict[type, Apply]:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleInputOutput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
    )

    return {
        ColwiseParallel: _colwise,
        RowwiseParallel: _rowwise,
        SequenceParallel: _sequence,
        PrepareModuleInput: _prepare_input,
        PrepareModuleOutput: _prepare_output,
        PrepareModuleInputOutput: _prepare_both,
    }


def _colwise(style: Any, module: nn.Module, mesh: Mesh | SubMesh, what: str) -> None:
    from torch.distributed.tensor import Replicate, Shard

    dim = 0 if _is_linear(module, what) else 1
    for name in module._parameters:
        _spread(module, name, mesh, dim)
    before = steps(style.input_layouts[0], Replicate())
    after = steps(Shard(-1), style.output_layouts[0])
    _around(module, mesh, what, before, after)


def _rowwise(style: Any, module: nn.Module, mesh: Mesh | SubMesh, what: str) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    is_linear = _is_linear(module, what)
    for name in module._parameters:
        if not is_linear:
            _spread(module, name, mesh, 0)
        elif name == "weight":
            _spread(module, name, mesh, 1)
    before = steps(style.input_layouts[0], Shard(-1) if is_linear else Replicate())
    after = steps(Partial(), style.output_layouts[0])
    _around(module, mesh, what, before, after)


def _sequence(style: Any, module: nn.Module, mesh: Mesh | SubMesh, what: str) -> None:
    (sequence,) = style.sequence_sharding
    _around(module, mesh, what, steps(sequence, None), steps(sequence, None))


def _prepare_input(style: Any, module: nn.Module, mesh: Mesh | SubMesh, what: str) -> None:
    by_position = None
    if style.input_layouts is not None:
        pairs = zip(style.input_layouts, style.desired_input_layouts, strict=True)
        by_position = tuple(
            _of_pair(mesh, given, wanted, f"input {i} of {what}")
            for i, (given, wanted) in enumerate(pairs)
        )
    by_name = {}
    for name, given in style.input_kwarg_layouts.items():
        wanted = style.desired_input_kwarg_layouts.get(name)
        arranged = _of_pair(mesh, given, wanted, f"input `{name}` of {what}")
        if arranged is not None:
            by_name[name] = arranged
    module.register_forward_pre_hook(EachInput(what, by_position, by_name), with_kwargs=True)


def _prepare_output(style: Any, module: nn.Module, mesh: Mesh | SubMesh, what: str) -> None:
    pairs = zip(style.output_layouts, style.desired_output_layouts, strict=True)
    by_position = tuple(
        _of_pair(mesh, given, wanted, f"output {i} of {what}")
        for i, (given, wanted) in enumerate(pairs)
    )
    module.register_forward_hook(EachOutput(what, by_position))


def _prepare_both(style: Any, module: nn.Module, mesh: Mesh | SubMesh, what: str) -> None:
    _prepare_input(style.prepare_module_input, module, mesh, what)
    _prepare_output(style.prepare_module_output, module, mesh, what)


def _of_pair(mesh: Mesh | SubMesh, given: Any, wanted: Any, what: str) -> Arranged | None:
    return None if given is None else Arranged(mesh, steps(given, wanted), what)


def _around(module: nn.Module, mesh: Mesh | SubMesh, what: str, before: Any, after: Any) -> None:
    """Place what parameters and buffers are left, and arrange the module's input and output."""
    distribute_module(module, mesh)
    module.register_forward_pre_hook(FirstInput(Arranged(mesh, before, f"the input of {what}")))
    module.register_forward_hook(Output(Arranged(mesh, after, f"the output of {what}")))


def _spread(module: nn.Module, name: str, mesh: Mesh | SubMesh, dim: int) -> None:
    place_parameter(module, name, mesh, (*[None] * dim, mesh.axis_names[0]))


def _is_linear(module: nn.Module, what: str) -> bool:
    if not isinstance(module, (nn.Linear, nn.Embedding)):
        raise UnsupportedError(
            f"A style of columns or rows is for `nn.Linear` and `nn.Embedding`: {what} is another module.",
            saw=type(module).__name__,
            hint="a pattern that names the layers within it; `mark_sharding` for other weights",
        )
    return isinstance(module, nn.Linear)
