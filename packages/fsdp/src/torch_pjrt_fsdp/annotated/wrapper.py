"""`FullyShardedDataParallel`: a module around a model, with the names of PyTorch's first FSDP."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_pjrt.errors import UnsupportedError
from torch_pjrt_fsdp.annotated.axes import Names
from torch_pjrt_fsdp.annotated.blocks import block_of, blocks_in
from torch_pjrt_fsdp.annotated.sharding import fully_shard, reshards
from torch_pjrt_fsdp.annotated.state_dicts import StateDicts, of_settings
from torch_pjrt_fsdp.annotated.summoning import summon_full_params

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh

_WITHOUT_MEANING = frozenset(
    {
        "device_id",
        "limit_all_gathers",
        "sync_module_states",
        "use_orig_params",
    }
)


class FullyShardedDataParallel(StateDicts, nn.Module):
    """A model whose parameters, gradients and optimizer state lie in parts over a mesh; its blocks too.

    module             as `fully_shard` takes it; blocks within it stay what they are, and get no wrapper.
    mesh, device_mesh  as there. sharding_strategy: PyTorch's; those without resharding keep what is gathered.
    auto_wrap_policy   as `wrap` there. mixed_precision: as `mp_policy`.
    ignored_modules, ignored_states    modules, or parameters, that stay whole on each chip.
    param_init_fn      called with each module that has parameters on `meta`, once these are on the device;
                       None: the module's `reset_parameters`.
    shard_axes, replicate_axes, batch_dim    as there.

    forward_prefetch   as there. backward_prefetch: as there, or PyTorch's `BackwardPrefetch`, of which
                       `BACKWARD_PRE` is one block before, `BACKWARD_POST` none.

    What else PyTorch's class takes is about when collectives run and has no meaning here; it is accepted.
    Names in `named_parameters()` and state dicts are the model's own. Raises as `fully_shard` does;
    `UnsupportedError` for process groups.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: Any = None,
        cpu_offload: Any = None,
        auto_wrap_policy: Any = None,
        mixed_precision: Any = None,
        ignored_modules: Iterable[nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        ignored_states: Iterable[Any] | None = None,
        device_mesh: AnyMesh | None = None,
        forward_prefetch: bool | int | None = False,
        backward_prefetch: Any = False,
        *,
        mesh: AnyMesh | None = None,
        shard_axes: Names | None = None,
        replicate_axes: Names | None = None,
        batch_dim: int | None = 0,
        **others: Any,
    ) -> None:
        super().__init__()
        if unknown := others.keys() - _WITHOUT_MEANING:
            raise TypeError(f"FullyShardedDataParallel takes no {', '.join(sorted(unknown))}")
        if process_group is not None:
            raise UnsupportedError(
                "One process drives all chips: there are no process groups.",
                hint="mesh=Mesh(...); PyTorch's own class takes process groups of the backend `pjrt`",
            )
        states = list(ignored_states or ())
        modules = [*(ignored_modules or ()), *(s for s in states if isinstance(s, nn.Module))]
        fully_shard(
            module,
            mesh=device_mesh if mesh is None else mesh,
            wrap=auto_wrap_policy,
            reshard_after_forward=None
            if sharding_strategy is None
            else reshards(sharding_strategy),
            mp_policy=mixed_precision,
            ignored_params=[s for s in states if isinstance(s, nn.Parameter)],
            ignored_modules=modules,
            offload_policy=cpu_offload,
            shard_axes=shard_axes,
            replicate_axes=replicate_axes,
            batch_dim=batch_dim,
            forward_prefetch=forward_prefetch,
            backward_prefetch=_by_pytorch(backward_prefetch),
        )
        self.module = module
        _initialize(module, param_init_fn)
        self.register_load_state_dict_pre_hook(_with_prefix)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def __getitem__(self, key: Any) -> Any:
        module: Any = self.module
        return module[key]

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Generator[tuple[str, nn.Module], None, None]:
        """This one and the model's, by the model's own names: two modules have the first name."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def _fqn_modifiers(self) -> dict[str, str]:
        """Of names in this module the attribute that has what they name: what PyTorch's state dicts ask."""
        held = self.module
        names = (*held._modules, *held._parameters, *held._buffers, "_extra_state")
        return dict.fromkeys(names, "module")

    def state_dict(
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> Any:
        """The model's: each tensor is a whole one to PyTorch, and lies in parts."""
        found = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        return of_settings(self, found, prefix)

    def check_is_root(self) -> bool:
        """Whether it is no part of another block."""
        block = block_of(self.module)
        return block is not None and block.is_root

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Raises `UnsupportedError`: XLA makes the collectives."""
        raise UnsupportedError(
            "XLA makes the collectives: there is no call of one to hook.",
            hint="p.register_post_accumulate_grad_hook(...) sees gradients that are added up",
        )

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale all gradients so that their norm is at most `max_norm`; the norm before."""
        return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

    def no_sync(self) -> Any:
        """A block of code in which gradients are accumulated: in parts, as elsewhere; it changes nothing."""
        module: Any = self.module
        return module.no_sync()

    @staticmethod
    def summon_full_params(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """As the function of that name."""
        return summon_full_params(module, *args, **kwargs)

    @staticmethod
    def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[nn.Module]:
        """The blocks in a module, outer ones first."""
        return [b.module for b in blocks_in(module) if b.is_root or not root_only]


def _by_pytorch(prefetch: Any) -> Any:
    """PyTorch's `BackwardPrefetch` as `fully_shard` takes it; what is none as it is."""
    from torch.distributed.fsdp import BackwardPrefetch

    return (
        prefetch is BackwardPrefetch.BACKWARD_PRE
        if isinstance(prefetch, BackwardPrefetch)
        else prefetch
    )


def _initialize(module: nn.Module, init: Callable[[nn.Module], None] | None) -> None:
    on_meta = [
        part
        for part in module.modules()
        if any(
            x is not None and x.device.type == "meta"
            for x in (*part._parameters.values(), *part._buffers.values())
        )
    ]
    if not on_meta:
        return
    module.to_empty(device="pjrt")
    for part in on_meta:
        reset = init if init is not None else getattr(type(part), "reset_parameters", None)
        if reset is None:
            raise UnsupportedError(
                f"`{type(part).__name__}` is on `meta`, and it is not said how it begins.",
                hint="param_init_fn=..., or a method `reset_parameters`",
            )
        with torch.no_grad():
            reset(part)


def _with_prefix(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Names are the model's own; those that PyTorch looks for have `module.` in them."""
    inner = f"{prefix}module."
    for key in [k for k in state_dict if k.startswith(prefix) and not k.startswith(inner)]:
        state_dict[inner + key[len(prefix) :]] = state_dict.pop(key)
