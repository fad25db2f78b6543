"""`export`: a module of PyTorch as programs of StableHLO that need no PyTorch."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.export import ExportedProgram

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import start
from torch_pjrt_quant.exporting.entry import EntryPoint, Named, Shared, exported_entry
from torch_pjrt_quant.exporting.interpreter import table
from torch_pjrt_quant.exporting.model import ExportedModel

PLATFORMS = ("cpu", "tpu", "cuda")


def export(
    model: torch.nn.Module | ExportedProgram | Mapping[str, ExportedProgram],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    entries: Mapping[str, EntryPoint] | None = None,
    platforms: Sequence[str] = PLATFORMS,
    gradient: bool = False,
    weights: str = "beside",
    strict: bool = False,
) -> ExportedModel:
    """A module as programs that run without PyTorch: `.save(folder)` writes them with what runs them.

    model             a module on any device, in the mode (`eval`, `train`) in which it is; or what
                      `torch.export.export` made of one, or several of them by name.
    args, kwargs      example arguments of `forward`.
    dynamic_shapes    which sizes may vary, as `torch.export.export` takes it; a `Dim`'s name is the size's
                      name in the signature and in errors.
    entries           instead of arguments, several entry points by name, which share weights and state.
    platforms         what the programs are for: JAX's names of platforms (`cpu`, `tpu`, `cuda`, `rocm`).
    gradient          the programs of derivatives, too.
    weights           "beside" the programs, in a file that all entry points share, or "inside" of each.
    strict            as `torch.export.export` takes it.

    Raises `LoweringError` for what depends on values where sizes must be known (docs/export.md), naming the
    operator and the line that called it; `ValueError` for arguments that do not go together.
    """
    start()
    if weights not in ("beside", "inside"):
        raise ValueError(f'weights is {weights!r}, and should be "beside" or "inside"')
    if entries is not None and (args or kwargs or dynamic_shapes):
        raise ValueError("arguments are those of the entry points, where `entries` are given")
    programs = _programs(model, args, kwargs, dynamic_shapes, entries, strict)
    shared = Shared(
        rules=table(),
        state=_updated({name: program for name, (program, _) in programs.items()}),
        platforms=tuple(platforms),
        gradient=gradient,
        inside=weights == "inside",
    )
    made = {
        name: exported_entry(name, program, point, shared)
        for name, (program, point) in programs.items()
    }
    return ExportedModel(made, shared.tensors.by_name)


def _programs(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    entries: Mapping[str, EntryPoint] | None,
    strict: bool,
) -> dict[str, tuple[ExportedProgram, Named | None]]:
    """What PyTorch exports of each entry point."""
    if isinstance(model, ExportedProgram):
        return {"forward": (model, None)}
    if isinstance(model, Mapping):
        return {name: (program, None) for name, program in model.items()}
    if not isinstance(model, torch.nn.Module):
        raise ValueError(
            f"export takes a module or an exported program, not {type(model).__name__}"
        )
    points = entries or {"forward": EntryPoint(tuple(args), kwargs or {}, dynamic_shapes)}
    made = {}
    for name, point in points.items():
        if not name.isidentifier():
            raise ValueError(
                f"{name!r} cannot be the name of an entry point: it is a file's name, too"
            )
        with _calling(model, point.method), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            try:
                program = torch.export.export(
                    model,
                    tuple(point.args),
                    dict(point.kwargs),
                    dynamic_shapes=point.dynamic_shapes,
                    strict=strict,
                )
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise LoweringError(
                    f"`{error.func}` gives a size or a Python number that only values decide.",
                    hint="keep it in a tensor, or compute that part outside (docs/export.md)",
                ) from error
        made[name] = program, Named(point, _positional(getattr(model, point.method)))
    return made


def _positional(method: Callable[..., Any]) -> tuple[str, ...]:
    """Names of arguments that may be given by their position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    return tuple(p.name for p in parameters if p.kind in kinds)


@contextmanager
def _calling(model: torch.nn.Module, method: str) -> Iterator[None]:
    """A block in which calling the module calls that method."""
    if method == "forward":
        yield
        return
    if not callable(getattr(model, method, None)):
        raise ValueError(f"{type(model).__name__} has no method {method!r}")
    model.forward = getattr(model, method)
    try:
        yield
    finally:
        del model.forward


def _updated(programs: Mapping[str, ExportedProgram]) -> set[str]:
    """Names of the buffers that some entry point writes to."""
    return {
        str(target)
        for program in programs.values()
        for target in program.graph_signature.buffers_to_mutate.values()
    }
