"""Rounding that looks at what a layer is given: GPTQ and AWQ, layer by layer, on the device.

Both want of a layer's inputs X only the sum of X.T @ X, columns x columns: what is held beyond the model is
that matrix, and one weight in float32.

    gptq_   rounds column by column, and corrects the columns that follow for what was lost (Frantar et al.,
            "GPTQ", 2022; its Cholesky form)
    awq_    multiplies columns whose inputs are large before it rounds, and inputs by the inverse (Lin et al.,
            "AWQ", 2023); how much is searched for, and so is where to cut the range of each group

The rounding itself is `rounding.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from torch_pjrt_quant import packing, rounding
from torch_pjrt_quant.linear import Int4, Int4Linear, OrderedInt4Linear, ScaledInt4Linear

Which = Callable[[str, torch.nn.Linear], bool]


def gptq_(
    model: torch.nn.Module,
    batches: Iterable[Any],
    config: Int4 | None = None,
    which: Which | None = None,
    *,
    damping: float = 0.01,
    ordered: bool = False,
) -> torch.nn.Module:
    """Put `Int4Linear`s in the place of a module's linear layers, rounded by GPTQ.

    model      on `pjrt`.
    batches    calibration data: what the model is called with, each a tensor, a tuple of arguments, or a
               dict of keyword arguments. The model is run on all of it once for each set of layers that
               share an input, as far as those layers.
    config     `Int4()` unless given.
    which      as for `quantize_`.
    damping    added to the diagonal of the inputs' products, as a share of its mean.
    ordered    columns with the largest inputs come first (`desc_act`): better, but calls reorder inputs.

    Layers come in the order in which they run, and see what the layers before them, already rounded, give.
    Returns the module. Raises `ValueError` where groups do not divide a layer's columns, or none is called.
    """
    config = config or Int4()

    def made(linear: torch.nn.Linear, products: Tensor, _: Tensor) -> torch.nn.Module:
        run = rounding.gptq(config.group_size, config.symmetric, damping)
        weight = linear.weight.detach().float()
        order = products.diagonal().argsort(descending=True) if ordered else None
        if order is not None:
            weight, products = weight[:, order], products[order][:, order]
        numbers, scale, zero = run(weight, products)
        tensors = (
            packing.pack(numbers, config.group_size),
            scale,
            None if config.symmetric else zero,
        )
        sizes = linear.in_features, linear.out_features
        if order is not None:
            return OrderedInt4Linear(*sizes, tensors, linear.bias, order=order)
        return Int4Linear(*sizes, tensors, linear.bias)

    return _calibrated(model, batches, config, which, made)


def awq_(
    model: torch.nn.Module,
    batches: Iterable[Any],
    config: Int4 | None = None,
    which: Which | None = None,
) -> torch.nn.Module:
    """Put `ScaledInt4Linear`s in the place of a module's linear layers: AWQ. Arguments are those of `gptq_`.

    The inverse factors stay a multiplication of the layer's input, which XLA joins with what is before it.
    On the calibration data no layer's outputs have a larger error than with rounding to nearest.
    """
    config = config or Int4()

    def made(linear: torch.nn.Linear, products: Tensor, sizes_of_inputs: Tensor) -> torch.nn.Module:
        run = rounding.awq(config.group_size, config.symmetric)
        weight = linear.weight.detach().float()
        numbers, scale, zero, factor = run(weight, products, sizes_of_inputs)
        tensors = (
            packing.pack(numbers, config.group_size),
            scale,
            None if config.symmetric else zero,
        )
        sizes = linear.in_features, linear.out_features
        return ScaledInt4Linear(*sizes, tensors, linear.bias, factor=1 / factor)

    return _calibrated(model, batches, config, which, made)


class _Enough(Exception):
    """The layers that are looked at have been called."""


def _calibrated(
    model: torch.nn.Module,
    batches: Iterable[Any],
    config: Int4,
    which: Which | None,
    made: Callable[[torch.nn.Linear, Tensor, Tensor], torch.nn.Module],
) -> torch.nn.Module:
    batches = list(batches)
    layers = {
        name: m
        for name, m in model.named_modules()
        if type(m) is torch.nn.Linear and (which is None or which(name, m))
    }
    for name, linear in layers.items():
        if linear.in_features % config.group_size:
            raise ValueError(
                f"`{name}`: groups of {config.group_size} do not divide {linear.in_features} columns; "
                "leave it out with `which`"
            )
    groups = _in_order(model, batches, layers)
    if not groups:
        raise ValueError("no linear layer is called with the calibration data")
    for names in groups:
        products, sizes = _inputs_of(model, batches, layers[names[0]])
        for name in names:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, made(layers[name], products, sizes))
    return model


@torch.no_grad()
def _in_order(
    model: torch.nn.Module, batches: Sequence[Any], layers: dict[str, torch.nn.Linear]
) -> list[list[str]]:
    """Names of the layers in the order of their calls; those that are given one tensor are together."""
    called: list[tuple[str, Tensor]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda _, given: called.append((name, given[0]))

    hooks = [m.register_forward_pre_hook(note(n)) for n, m in layers.items()]
    try:
        _call(model, batches[0])
    finally:
        for hook in hooks:
            hook.remove()
    groups: list[list[str]] = []
    seen: set[str] = set()
    last: Tensor | None = None
    for name, given in called:
        if name not in seen and given is last:
            groups[-1].append(name)
        elif name not in seen:
            groups.append([name])
        seen.add(name)
        last = given
    return groups


@torch.no_grad()
def _inputs_of(
    model: torch.nn.Module, batches: Sequence[Any], layer: torch.nn.Linear
) -> tuple[Tensor, Tensor]:
    """The sum of X.T @ X, and the mean of abs(X) by column, over all rows that the layer is given."""
    columns = layer.in_features
    products = torch.zeros(columns, columns, device=layer.weight.device)
    sizes = torch.zeros(columns, device=layer.weight.device)
    rows = 0

    def gather(_: Any, given: tuple[Any, ...]) -> None:
        nonlocal rows
        x = given[0].detach().reshape(-1, columns).float()
        products.add_(x.T @ x)
        sizes.add_(x.abs().sum(0))
        rows += len(x)
        raise _Enough

    hook = layer.register_forward_pre_hook(gather)
    try:
        for batch in batches:
            with suppress(_Enough):
                _call(model, batch)
    finally:
        hook.remove()
    return products, sizes / max(rows, 1)


def _call(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
