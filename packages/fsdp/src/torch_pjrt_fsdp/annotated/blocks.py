"""A block: a module whose parameters are gathered while its forward runs.

Its parameters stay what they are, in parts, in `parameters()`, in optimizers and in state dicts. While its
forward runs, the modules in it have the gathered ones in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from torch_pjrt.errors import UnsupportedError
from torch_pjrt.extend import is_pjrt
from torch_pjrt_fsdp.annotated import here
from torch_pjrt_fsdp.annotated.axes import Axes
from torch_pjrt_fsdp.annotated.gathering import Lying, Resharding, gathered, in_backward
from torch_pjrt_fsdp.annotated.precision import Precision
from torch_pjrt_spmd import (
    Mesh,
    ShardingError,
    compiled_for,
    distribute_tensor,
    mark_sharding,
    marks,
    redistribute,
)

# Where a module's block is found.
ATTRIBUTE = "_torch_pjrt_fsdp_block"


@dataclass(frozen=True)
class Owned:
    """A parameter by the module that has it, and how it lies; `lying` is None for one that stays whole."""

    module: nn.Module
    name: str
    full_name: str
    lying: Lying | None

    def now(self) -> Any:
        """The parameter as it is now: loading and moving may have put another one in its place."""
        return self.module._parameters.get(self.name)


@dataclass(eq=False)
class Block:
    """What `fully_shard` knows of a module.

    owned    the parameters that it gathers: those within it that no block within it has.
    is_root  it is no part of another block; it brings batches onto the mesh.
    forward_prefetch, backward_prefetch    how many blocks before its own forward or backward its parameters
             may be gathered; None: when XLA likes.
    """

    module: nn.Module
    axes: Axes
    owned: list[Owned]
    precision: Precision
    resharded: bool
    is_root: bool = True
    batch_dim: int | None = 0
    forward_prefetch: int | None = None
    backward_prefetch: int | None = None
    is_active: bool = False
    _was: list[tuple[nn.Module, str, Any]] = field(default_factory=list)
    _resharding: list[Resharding] = field(default_factory=list)

    def is_here(self) -> bool:
        """Whether its mesh is of the chips that programs are for now, and not of a target's."""
        return self.axes.mesh.target in (None, compiled_for.target())

    def place(self, *devices: str) -> None:
        """Have its parameters lie in parts, where they are on one of these devices."""
        for owned in self.owned:
            p = owned.now()
            if p is not None and p.device.type in devices:
                _place(owned, p, self.axes.mesh)

    # --- forward

    def enter(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before the forward of its module: gather, and give the inputs as they are to be."""
        if torch.compiler.is_compiling():
            return self._enter_graph(args, kwargs)
        if not self.is_here():
            return args, kwargs
        self._check_device()
        if self.is_root and self.batch_dim is not None:
            args, kwargs = tree_map_only(torch.Tensor, self._spread, (args, kwargs))
        args, kwargs = self.precision.cast_inputs(args, kwargs, self.is_root)
        if self.is_active:
            return args, kwargs  # called within itself
        args, kwargs = self._begins(args, kwargs)
        self.is_active = True
        self._swap_in(self.owned)
        if self.resharded:
            resharding = Resharding()
            resharding.__enter__()
            self._resharding.append(resharding)
        return args, kwargs

    def _enter_graph(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Dynamo traces the forward: parameters are gathered as they are asked for (`in_graphs.py`)."""
        if self.axes.mesh.target is not None:
            raise UnsupportedError(
                "A model in parts for chips that are not here is not for `torch.compile`.",
                hint="torch_pjrt.compile_for records the step as it is",
            )
        if self.is_root and self.batch_dim is not None:
            args, kwargs = tree_map_only(torch.Tensor, self._spread_in_graph, (args, kwargs))
        return self._begins(*self.precision.cast_inputs(args, kwargs, self.is_root))

    def _check_device(self) -> None:
        for owned in self.owned:
            p = owned.now()
            if p is not None and p.device.type != "pjrt" and self.axes.mesh.target is None:
                raise ShardingError(
                    "A model in parts is run where its parameters are not.",
                    saw=f"{owned.full_name} on {p.device}",
                    expected="on pjrt",
                    hint='model.to("pjrt"), or model.to_empty(device="pjrt") for one on meta',
                )

    def _begins(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if self._is_any_time:
            return args, kwargs
        return here.begins((args, kwargs), self.forward_prefetch)

    def _ends(self, output: Any) -> Any:
        return output if self._is_any_time else here.ends(output, self.backward_prefetch)

    @property
    def _is_any_time(self) -> bool:
        return self.forward_prefetch is None and self.backward_prefetch is None

    def leave(self, output: Any) -> Any:
        """After the forward, also where that has raised: the parts are back in their places."""
        if torch.compiler.is_compiling():
            return self._ends(self.precision.cast_output(output))
        while self._resharding:
            self._resharding.pop().__exit__(None, None, None)
        self._swap_out()
        self.is_active = False
        return self._ends(self.precision.cast_output(output)) if self.is_here() else output

    def _swap_in(self, which: list[Owned]) -> None:
        made: dict[int, torch.Tensor] = {}  # tied ones are gathered once
        for owned in which:
            p = owned.now()
            if owned.lying is None or p is None or not isinstance(p, nn.Parameter):
                continue
            if id(p) not in made:
                made[id(p)] = gathered(p, owned.lying, self.resharded)
            self._was.append((owned.module, owned.name, p))
            owned.module._parameters[owned.name] = made[id(p)]  # pyright: ignore[reportArgumentType]

    def _swap_out(self) -> None:
        while self._was:
            module, name, p = self._was.pop()
            module._parameters[name] = p

    # --- a module within it, called while its own forward does not run

    def enter_part(self, module: nn.Module) -> None:
        """A checkpoint within the block computes again: the part gathers what it has of its own."""
        if torch.compiler.is_compiling() or self.is_active:
            return
        if in_backward() and self.is_here():
            self._swap_in([owned for owned in self.owned if owned.module is module])

    def leave_part(self) -> None:
        if not torch.compiler.is_compiling() and not self.is_active:
            self._swap_out()

    def _batch_spec(self, x: torch.Tensor) -> tuple[Any, ...] | None:
        dim, names = self.batch_dim, self.axes.batch
        assert dim is not None
        if x.dim() <= dim or x.shape[dim] % self.axes.n_batches or not x.shape[dim]:
            return None
        return (*[None] * dim, names[0] if len(names) == 1 else names)

    def _spread_in_graph(self, x: torch.Tensor) -> torch.Tensor:
        """A batch that comes into a compiled function: no one knows there how it lies."""
        if x.device.type not in ("pjrt", "cpu") or not x.dim():
            return x
        spec = self._batch_spec(x)
        x = x.to("pjrt")
        return x if spec is None else redistribute(x, self.axes.mesh, spec)

    def _spread(self, x: torch.Tensor) -> torch.Tensor:
        """A batch with a part of its rows on each chip, unless it lies somehow already.

        What the chips do not divide, the last batch of an epoch say, comes to the device all the same; a
        number stays on the CPU, where PyTorch takes it beside what is elsewhere.
        """
        spec = self._batch_spec(x)
        if x.device.type == "cpu" and x.dim():
            if self.axes.mesh.target is None and spec is not None:
                return distribute_tensor(x, self.axes.mesh, spec)
            x = x.to("pjrt")
        if spec is None or not is_pjrt(x) or _is_spread(x):
            return x
        return redistribute(x, self.axes.mesh, spec)


def _is_spread(x: torch.Tensor) -> bool:
    how = marks.how_it_lies(x) or marks.mark_of(x)
    return how is not None and any(how.spec)


def _place(owned: Owned, p: nn.Parameter, mesh: Mesh) -> None:
    """A parameter of the CPU stays the one that it is, for its optimizer and where it is tied."""
    lying = owned.lying
    spec, kind = ((), None) if lying is None else (lying.spec, lying.memory_kind)
    if mesh.target is None and p.device.type == "cpu":
        grad, p.grad = p.grad, None
        torch.empty(
            0, device="pjrt"
        )  # a first tensor of the device: `data` takes such from then on
        p.data = distribute_tensor(p.detach(), mesh, spec, memory_kind=kind)
        p.grad = None if grad is None else distribute_tensor(grad, mesh, spec)
    mark_sharding(p, mesh, spec, memory_kind=kind)
    if lying is not None and lying.offload.any:
        lying.offload.mark(p, mesh, spec)


def block_of(module: nn.Module) -> Block | None:
    """The block that a module is; None for one that is none."""
    return module.__dict__.get(ATTRIBUTE)


def blocks_in(module: nn.Module) -> Iterator[Block]:
    """All blocks in a module, itself first."""
    for part in module.modules():
        block = block_of(part)
        if block is not None:
            yield block


class Before:
    """The hook before a block's forward."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return self.block.enter(args, kwargs)


class After:
    """The hook after it."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return self.block.leave(output)


class BeforePart:
    """The hook before the forward of a module in a block that has parameters of its own."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.block.enter_part(module)


class AfterPart:
    """The hook after it."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.block.leave_part()
