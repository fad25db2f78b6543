"""Layers with small weights, or others, in the place of the linear layers of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from torch_pjrt_quant import packing
from torch_pjrt_quant.linear import Config, Int4, Nf4, QuantizedLinear
from torch_pjrt_quant.sharding import lie_as

M = TypeVar("M", bound=torch.nn.Module)


def quantize_(
    model: M,
    config: Config,
    which: Callable[[str, torch.nn.Linear], bool] | None = None,
) -> M:
    """Put layers with small weights in the place of a module's linear layers, which lose theirs.

    config    `Int8()`, `Int4(group_size=...)`, `Nf4()`, `Float8()`.
    which     of a layer's name and the layer, whether it is changed; all are, unless it says otherwise.

    Works on the device that the module is on, layer by layer: it takes the memory of one layer beyond that of
    the module. Returns the module. Raises `ValueError` where groups do not divide a layer's columns, or no
    layer is there; then the module is as it was.
    """
    layers = linear_layers(model, which)
    check_columns(model, layers, config)
    for names in layers:
        put(model, names, config.layer(linear_at(model, names[0])))
    return off_fast_paths(model)


def check_columns(model: torch.nn.Module, layers: list[list[str]], config: Config) -> None:
    """Raises `ValueError`, before anything is changed, where groups do not divide a layer's columns."""
    if isinstance(config, (Int4, Nf4)):
        for name, *_ in layers:
            try:
                packing.check_groups(linear_at(model, name).in_features, config.group_size)
            except ValueError as error:
                raise ValueError(f"`{name}`: {error}; leave it out with `which`") from error


def linear_at(model: torch.nn.Module, name: str) -> torch.nn.Linear:
    """The linear layer of that name."""
    found = model.get_submodule(name)
    assert isinstance(found, torch.nn.Linear)
    return found


def linear_layers(
    model: torch.nn.Module, which: Callable[[str, torch.nn.Linear], bool] | None
) -> list[list[str]]:
    """The names of each linear layer that `which` names: one that is there twice has two.

    (Names alone, so that a layer's memory is free when another one has taken its place.)
    Raises `ValueError` where there is none: whoever asks to change layers wants some to be changed.
    """
    if type(model) is torch.nn.Linear:
        raise ValueError(
            "the module is a linear layer itself, which cannot be replaced within itself; "
            "put it into `torch.nn.Sequential`"
        )
    found: dict[int, list[str]] = {}
    for name, m in model.named_modules(remove_duplicate=False):
        if type(m) is torch.nn.Linear and (which is None or which(name, m)):
            found.setdefault(id(m), []).append(name)
    if not found:
        named = "that `which` names " if which is not None else ""
        raise ValueError(
            f"{type(model).__name__} has no `torch.nn.Linear` {named}(of a class derived from it, none is "
            "changed)"
        )
    return list(found.values())


#   what a module keeps of hooks on its calls
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def put(model: torch.nn.Module, names: Sequence[str], made: torch.nn.Module) -> None:
    """A layer in the place of a linear one, which has these names.

    It has that one's mode and hooks (those of `parallelize_module`, say), and lies on a mesh as that does.
    """
    before = linear_at(model, names[0])
    made.train(before.training)
    for hooks in HOOKS:
        getattr(made, hooks).update(getattr(before, hooks))
    if isinstance(made, QuantizedLinear):
        lie_as(made, before)
    for path in names:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, made)


def off_fast_paths(model: M) -> M:
    """Keep PyTorch's encoders from kernels that read the weights of quantized layers as floats.

    In inference, `TransformerEncoderLayer` hands the weights of its linear layers to one kernel, and
    `TransformerEncoder` packs what is padded for that. The layers are called instead. Returns the module.
    """
    for layer in model.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer) and _has_quantized(layer):
            layer.activation_relu_or_gelu = 0
        elif isinstance(layer, torch.nn.TransformerEncoder) and _has_quantized(layer):
            layer.use_nested_tensor = False
    return model


def _has_quantized(model: torch.nn.Module) -> bool:
    return any(isinstance(m, QuantizedLinear) for m in model.modules())
