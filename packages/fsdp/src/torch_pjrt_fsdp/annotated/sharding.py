"""`fully_shard`: a model whose parameters, gradients and optimizer state lie in parts over a mesh."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from torch_pjrt.errors import SettingError, UnsupportedError
from torch_pjrt.extend import is_pjrt
from torch_pjrt_fsdp.annotated.axes import Axes, Names, axes_of
from torch_pjrt_fsdp.annotated.blocks import (
    ATTRIBUTE,
    After,
    AfterPart,
    Before,
    BeforePart,
    Block,
    Owned,
    block_of,
    blocks_in,
)
from torch_pjrt_fsdp.annotated.gathering import Lying
from torch_pjrt_fsdp.annotated.in_graphs import gather_in_graphs
from torch_pjrt_fsdp.annotated.module import class_of
from torch_pjrt_fsdp.annotated.offloading import HostOffload, Offloaded, offload_of
from torch_pjrt_fsdp.annotated.policies import blocks_of
from torch_pjrt_fsdp.annotated.precision import Precision, precision_of
from torch_pjrt_spmd import ShardingError, mark_sharding, marks
from torch_pjrt_spmd.distributing import parameters_stay_tied

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh


def fully_shard(
    module: nn.Module | Sequence[nn.Module],
    *,
    mesh: AnyMesh | None = None,
    wrap: Any = None,
    reshard_after_forward: bool | None = None,
    mp_policy: Any = None,
    ignored_params: Iterable[nn.Parameter] | None = None,
    ignored_modules: Iterable[nn.Module] | None = None,
    offload_policy: Any = None,
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
    shard_axes: Names | None = None,
    replicate_axes: Names | None = None,
    batch_dim: int | None = 0,
    forward_prefetch: bool | int | None = False,
    backward_prefetch: bool | int | None = False,
) -> Any:
    """Have a model's parameters, gradients and optimizer state lie in parts over a mesh. Returns the model.

    module     on the device, on the CPU (each chip gets its part alone) or on `meta` (then
               `module.to_empty(device="pjrt")` and the model's own initialization, each chip for its part).
               Parameters stay the objects that they are. Or a list of modules: each of them is a block.
    mesh       a `Mesh`, `mesh["fsdp"]`, or PyTorch's `DeviceMesh`. Of one with two axes the second one
               spreads parameters and the first has copies (hybrid sharding). None: the mesh in use, else all
               chips.
    wrap       which modules within are blocks of their own: a class or several, a number of parameters, a
               pattern of names, a function of a module, or a policy of `torch.distributed.fsdp.wrap`.
               The rest of the model is one more block. Modules may also be given to this function one by
               one, the model last, as to PyTorch's.
    reshard_after_forward    whether a block's parameters are gathered again for its backward, or kept. None:
               again in blocks, kept in a model that has blocks within it.
    mp_policy  PyTorch's `MixedPrecisionPolicy` or `MixedPrecision`: dtypes for parameters while gathered, for
               the sums of gradients, and of the model's results.
    ignored_params, ignored_modules    what stays whole on each chip.
    offload_policy    what lies in the host's memory, and is brought to the chips where it is needed:
               `HostOffload`, or PyTorch's `CPUOffloadPolicy` or `CPUOffload`. What is whole stays on chips.
    shard_placement_fn    of a parameter PyTorch's `Shard(dim)`, or None for the usual dim.
    shard_axes, replicate_axes    names of the mesh's axes, where it has others, too.
    batch_dim  the dim of the model's inputs that is spread over the chips; None leaves inputs as they are.
    forward_prefetch, backward_prefetch    whether a block's parameters may be gathered before there is what
               its forward, or its backward, begins with: one block before (True), so many blocks before, or
               when XLA likes (None). Each one more may have the parameters of one more block in memory.

    Values are those of one chip, up to the order of sums. A parameter that has no dim which the chips
    divide stays whole. Operators of the model see whole tensors, so losses, `clip_grad_norm_` and state dicts
    are as they always are.

    Raises `ShardingError` for a mesh that cannot be had and for a module that has been given before,
    `SettingError` for what is no policy, `UnsupportedError` for offloading where chips reach no memory of the
    host's, and on one chip.
    """
    if isinstance(module, (list, tuple)):
        options: dict[str, Any] = {
            name: value for name, value in locals().items() if name != "module"
        }
        for one in module:
            fully_shard(one, **options)
        return module
    if not isinstance(module, nn.Module):
        raise TypeError(f"fully_shard takes a module, saw {type(module).__name__}")
    if block_of(module) is not None:
        raise ShardingError(
            "A module is sharded once.",
            saw=f"{type(module).__name__}, which has been already",
            hint="give `fully_shard` the modules within it first, and it last",
        )
    axes = axes_of(mesh, shard_axes, replicate_axes)
    offload = offload_of(offload_policy, axes.mesh)
    precision = precision_of(mp_policy)
    ignored = set(ignored_modules or ())
    left_out = set(ignored_params or ()) | {p for m in ignored for p in m.parameters()}
    prefetch = (
        prefetched(forward_prefetch, "forward_prefetch"),
        prefetched(backward_prefetch, "backward_prefetch"),
    )
    plan = _Plan(axes, precision, left_out, shard_placement_fn, batch_dim, offload, prefetch)
    with parameters_stay_tied(module):
        for part, options in blocks_of(module, wrap, ignored).items():
            if block_of(part) is None:
                of_part = _asked_of(options, reshard_after_forward, precision)
                plan.make(part, *of_part)
        inner = [b for b in blocks_in(module) if b.module is not module]
        resharded = not inner if reshard_after_forward is None else bool(reshard_after_forward)
        plan.make(module, resharded, precision)
    for block in inner:
        block.is_root = False
    if not offload.is_alike:
        marks.mark_programs(module, Offloaded(offload), axes.mesh)
    return module


def prefetched(asked: Any, name: str) -> int | None:
    """How many blocks before its own a block's parameters may be gathered; None: when XLA likes."""
    if asked is None or (isinstance(asked, int) and asked >= 0):
        return None if asked is None else int(asked)
    raise SettingError(
        f"`{name}` says how many blocks ahead parameters are gathered.",
        saw=repr(asked),
        expected="a bool, a number of blocks, or None: when XLA likes",
    )


def _asked_of(
    options: dict[str, Any], reshard: bool | None, precision: Precision
) -> tuple[bool, Precision]:
    """What a policy says of one block beside what holds for all: PyTorch's CustomPolicy can."""
    known = {"reshard_after_forward", "mp_policy", "mixed_precision", "sharding_strategy"}
    if unknown := options.keys() - known:
        raise SettingError(
            "A policy asks something of a block that is not known.",
            saw=", ".join(sorted(unknown)),
            expected=", ".join(sorted(known)),
        )
    if "sharding_strategy" in options:
        reshard = reshards(options["sharding_strategy"])
    reshard = options.get("reshard_after_forward", reshard)
    own = options.get("mp_policy", options.get("mixed_precision"))
    return (True if reshard is None else bool(reshard)), (
        replace(precision, output=None) if own is None else precision_of(own)
    )


def reshards(strategy: Any) -> bool:
    """Whether parameters are gathered again for backward, by PyTorch's `ShardingStrategy`."""
    from torch.distributed.fsdp import ShardingStrategy

    known = {
        ShardingStrategy.FULL_SHARD: True,
        ShardingStrategy.HYBRID_SHARD: True,
        ShardingStrategy.SHARD_GRAD_OP: False,
        ShardingStrategy._HYBRID_SHARD_ZERO2: False,
    }
    if strategy not in known:
        raise UnsupportedError(
            f"`{strategy}` spreads no parameters.",
            expected=", ".join(s.name for s in known),
            hint="data parallelism needs no wrapper: use_mesh(mesh), and batches by distribute_tensor",
        )
    return known[strategy]


class _Plan:
    """What holds for all blocks of a call."""

    def __init__(
        self,
        axes: Axes,
        precision: Precision,
        left_out: Collection[nn.Parameter],
        placement: Callable[[nn.Parameter], Any] | None,
        batch_dim: int | None,
        offload: HostOffload,
        prefetch: tuple[int | None, int | None],
    ) -> None:
        self.axes, self.precision, self.offload = axes, precision, offload
        self.left_out = {id(p) for p in left_out}
        self.placement, self.batch_dim, self.prefetch = placement, batch_dim, prefetch
        self._kept: list[nn.Parameter] = []

    def make(self, module: nn.Module, resharded: bool, precision: Precision) -> Block:
        """Make a block of a module: its class, its hooks, its parameters in parts."""
        self._kept += module.parameters()  # so that no other gets the identity of one
        taken = {
            (id(o.module), o.name)
            for b in blocks_in(module)
            if b.module is not module
            for o in b.owned
        }
        owned = [
            self._owned(part, name, f"{prefix}.{name}" if prefix else name, p, precision)
            for prefix, part in module.named_modules()
            for name, p in part._parameters.items()
            if p is not None and (id(part), name) not in taken
        ]
        block = Block(
            module,
            self.axes,
            owned,
            precision,
            resharded,
            batch_dim=self.batch_dim,
            forward_prefetch=self.prefetch[0],
            backward_prefetch=self.prefetch[1],
        )
        block.place("pjrt", "cpu")
        self._place_buffers(module, precision)
        module.__dict__[ATTRIBUTE] = block
        module.__class__ = class_of(type(module))
        module.register_forward_pre_hook(Before(block), prepend=True, with_kwargs=True)
        module.register_forward_hook(After(block), always_call=True)
        lying: dict[nn.Module, dict[str, Lying]] = {}
        for o in owned:
            if o.lying is not None:
                lying.setdefault(o.module, {})[o.name] = o.lying
        for part, of_part in lying.items():
            gather_in_graphs(part, block, of_part)
        for part in {o.module: None for o in owned if o.module is not module}:
            part.register_forward_pre_hook(BeforePart(block))
            part.register_forward_hook(AfterPart(block), always_call=True)
        return block

    def _owned(
        self, part: nn.Module, name: str, full_name: str, p: nn.Parameter, precision: Precision
    ) -> Owned:
        if id(p) in self.left_out:
            return Owned(part, name, full_name, None)
        before = self._before(p)
        asked = None if self.placement is None else self.placement(p)
        if asked is None:
            spec = self.axes.spec_of(p.shape, before)
        else:
            spec = self.axes.spec_at(_dim_of(asked), p.shape, before, full_name)
        if spec is None:
            return Owned(part, name, full_name, None)
        low = p.is_floating_point() and not isinstance(part, precision.ignored)
        dtype = precision.param if low else None
        reduce_dtype = precision.reduce or dtype if low else None
        lying = Lying(self.axes, spec, dtype, reduce_dtype, self.offload)
        return Owned(part, name, full_name, lying)

    def _before(self, p: nn.Parameter) -> tuple[Any, ...]:
        """How the parameter lies along the other axes of the mesh."""
        how = marks.mark_for(p, self.axes.mesh.target)
        if how is None or how.mesh != self.axes.mesh.jax_mesh:
            return ()
        return self.axes.without(tuple(how.spec))

    def _place_buffers(self, module: nn.Module, precision: Precision) -> None:
        mesh = self.axes.mesh
        for part in module.modules():
            for name, buffer in part._buffers.items():
                if buffer is None or buffer.device.type == "meta":
                    continue
                x = buffer
                if precision.buffers is not None and x.is_floating_point():
                    x = x.to(precision.buffers)
                if mesh.target is None and x.device.type == "cpu":
                    x = x.to("pjrt")
                if x is not buffer:
                    part._buffers[name] = x
                if is_pjrt(x) and marks.mark_for(x, mesh.target) is None:
                    mark_sharding(x, mesh, ())


def _dim_of(placement: Any) -> int:
    from torch.distributed.tensor import Shard

    if isinstance(placement, Shard):
        return placement.dim
    raise TypeError(
        f"shard_placement_fn gives torch.distributed.tensor.Shard(dim) or None, saw {placement!r}"
    )


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Have another method of a block gather its parameters, as its forward does.

    `ShardingError` for a module that is no block, `AttributeError` for a method that it lacks.
    """
    block = block_of(module)
    if block is None:
        raise ShardingError(
            "The module is no block.", saw=type(module).__name__, hint="fully_shard"
        )
    method = getattr(module, method_name)

    def around(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = block.enter(args, kwargs)
        output = None
        try:
            output = method(*args, **kwargs)
        finally:
            output = block.leave(output)
        return output

    module.__dict__[method_name] = around
