"""State dicts by the names of PyTorch's first FSDP. Full and sharded ones are the same here.

Each tensor is a whole one to PyTorch, and lies in parts. What is left of PyTorch's settings is whether
tensors come to the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from torch_pjrt.errors import UnsupportedError

# Where a module has what `set_state_dict_type` has said.
_ATTRIBUTE = "_torch_pjrt_fsdp_state_dict_settings"
_STATE, _GROUPS, _PARAMS = "state", "param_groups", "params"


class StateDicts:
    """What `FullyShardedDataParallel` is as well: PyTorch's functions for state dicts."""

    @staticmethod
    def set_state_dict_type(
        module: nn.Module,
        state_dict_type: Any,
        state_dict_config: Any = None,
        optim_state_dict_config: Any = None,
    ) -> Any:
        """Have state dicts be on the CPU from now on if a config says `offload_to_cpu`; what held before.

        state_dict_type   PyTorch's `StateDictType`, full or sharded. `UnsupportedError` for LOCAL_STATE_DICT.
        """
        from torch.distributed.fsdp import StateDictSettings, StateDictType

        if state_dict_type == StateDictType.LOCAL_STATE_DICT:
            raise UnsupportedError(
                "Parameters are never flat, so there are no state dicts of flat ones.",
                saw="LOCAL_STATE_DICT",
                expected="FULL_STATE_DICT or SHARDED_STATE_DICT",
            )
        before = StateDicts.get_state_dict_type(module)
        settings = StateDictSettings(state_dict_type, state_dict_config, optim_state_dict_config)
        for part in module.modules():
            if isinstance(part, StateDicts):
                part.__dict__[_ATTRIBUTE] = settings
        return before

    @staticmethod
    def get_state_dict_type(module: nn.Module) -> Any:
        """What holds for the first module in it that has such settings: PyTorch's `StateDictSettings`."""
        from torch.distributed.fsdp import (
            FullOptimStateDictConfig,
            FullStateDictConfig,
            StateDictSettings,
            StateDictType,
        )

        for part in module.modules():
            if (found := part.__dict__.get(_ATTRIBUTE)) is not None:
                return found
        on_device = FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False)
        return StateDictSettings(StateDictType.FULL_STATE_DICT, *on_device)

    @staticmethod
    @contextmanager
    def state_dict_type(
        module: nn.Module,
        state_dict_type: Any,
        state_dict_config: Any = None,
        optim_state_dict_config: Any = None,
    ) -> Iterator[None]:
        """A block of code in which that holds."""
        before = StateDicts.set_state_dict_type(
            module, state_dict_type, state_dict_config, optim_state_dict_config
        )
        try:
            yield
        finally:
            StateDicts.set_state_dict_type(
                module,
                before.state_dict_type,
                before.state_dict_config,
                before.optim_state_dict_config,
            )

    @staticmethod
    def optim_state_dict(
        model: nn.Module,
        optim: torch.optim.Optimizer,
        optim_state_dict: dict[str, Any] | None = None,
        group: Any = None,
    ) -> dict[str, Any]:
        """An optimizer's state by the names of parameters, not by their numbers.

        optim_state_dict   to be taken instead of the optimizer's own.
        """
        given = optim.state_dict() if optim_state_dict is None else optim_state_dict
        names = dict(enumerate(_names(model, optim)))
        found = _renamed(given, names)
        config = StateDicts.get_state_dict_type(model).optim_state_dict_config
        return _on_cpu(found) if getattr(config, "offload_to_cpu", False) else found

    @staticmethod
    def optim_state_dict_to_load(
        model: nn.Module,
        optim: torch.optim.Optimizer,
        optim_state_dict: dict[str, Any],
        is_named_optimizer: bool = False,
        load_directly: bool = False,
        group: Any = None,
    ) -> dict[str, Any]:
        """The other way round: what the optimizer's `load_state_dict` takes.

        is_named_optimizer   whether it takes names itself. load_directly: whether it is called.
        """
        numbers = {name: number for number, name in enumerate(_names(model, optim))}
        found = optim_state_dict if is_named_optimizer else _renamed(optim_state_dict, numbers)
        if load_directly:
            optim.load_state_dict(found)
        return found


def of_settings(module: nn.Module, state_dict: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The state dict, in which the module's names, that begin so, are as its settings want them."""
    settings = module.__dict__.get(_ATTRIBUTE)
    config = None if settings is None else settings.state_dict_config
    if getattr(config, "offload_to_cpu", False):
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[name] = _on_cpu(state_dict[name])
    return state_dict


def _on_cpu(nested: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda x: x.detach().cpu(), nested)


def _names(model: nn.Module, optim: torch.optim.Optimizer) -> list[Any]:
    """The names of the optimizer's parameters in its order; the number of one that the model lacks."""
    names = {id(p): name for name, p in model.named_parameters()}
    parameters = (p for group in optim.param_groups for p in group[_PARAMS])
    return [names.get(id(p), number) for number, p in enumerate(parameters)]


def _renamed(state_dict: dict[str, Any], names: dict[Any, Any]) -> dict[str, Any]:
    return {
        **state_dict,
        _STATE: {names.get(key, key): of_one for key, of_one in state_dict[_STATE].items()},
        _GROUPS: [
            {**group, _PARAMS: [names.get(key, key) for key in group[_PARAMS]]}
            for group in state_dict[_GROUPS]
        ],
    }
