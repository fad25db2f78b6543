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

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from torch_pjrt_quant import packing, rounding
from torch_pjrt_quant.linear import Int4, Int4Linear, OrderedInt4Linear, ScaledInt4Linear
from torch_pjrt_quant.replacing import check_columns, linear_at, linear_layers, off_fast_paths, put

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
    Returns the module. A `UserWarning` names layers that no data reaches (experts, say): they stay as they
    are. Raises `ValueError` where groups do not divide a layer's columns, none is called, inputs are not
    finite, or their products have no factors (few rows, little damping).
    """
    config = config or Int4()

    def made(linear: torch.nn.Linear, products: Tensor, _: Tensor) -> torch.nn.Module:
        run = rounding.gptq(config.group_size, config.symmetric, damping)
        weight = linear.weight.detach().float()
        order = products.diagonal().argsort(descending=True) if ordered else None
        if order is not None:
            weight, products = weight[:, order], products[order][:, order]
        numbers, scale, zero, is_finite = run(weight, products)
        if not is_finite:
            raise ValueError(
                f"the products of its inputs have no factors with damping={damping:g}: they depend on each "
                f"other, or are fewer than {linear.in_features} rows; give more calibration data, or a "
                "greater `damping`"
            )
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
    layers = {names[0]: names for names in linear_layers(model, which)}
    check_columns(model, list(layers.values()), config)
    groups = _in_order(model, batches, list(layers))
    if not groups:
        raise ValueError("no linear layer is called with the calibration data")
    if left := [name for name in layers if not any(name in group for group in groups)]:
        warnings.warn(
            f"no calibration data reaches {', '.join(f'`{n}`' for n in left[:5])}"
            f"{' ...' if len(left) > 5 else ''}: they stay as they are",
            UserWarning,
            stacklevel=3,
        )
    for group in groups:
        products, sizes = _inputs_of(model, batches, group[0])
        for name in group:
            try:
                small = made(linear_at(model, name), products, sizes)
            except ValueError as error:
                raise ValueError(f"`{name}`: {error}") from error
            put(model, layers[name], small)
    return off_fast_paths(model)


@torch.no_grad()
def _in_order(
    model: torch.nn.Module, batches: Sequence[Any], names: Sequence[str]
) -> list[list[str]]:
    """Names of the layers in the order of their calls; those that are given one tensor are together.

    Batches are looked at until all layers have been called. What a later one is the first to call comes
    behind what has been called before it there.
    """
    groups: list[list[str]] = []
    # The last call, of whatever layer: the group of the layer, and what it was given, which may be gone.
    before: list[str] | None = None
    last: weakref.ref[Tensor] | None = None

    def note(name: str) -> Callable[..., None]:
        def called(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal before, last
            given = _input(args, kwargs)
            group = next((g for g in groups if name in g), None)
            if group is None and before is not None and last is not None and last() is given:
                group = before
                group.append(name)
            elif group is None:
                group = [name]
                groups.insert(0 if before is None else groups.index(before) + 1, group)
            before, last = group, weakref.ref(given)

        return called

    hooks = [
        linear_at(model, n).register_forward_pre_hook(note(n), with_kwargs=True) for n in names
    ]
    try:
        for batch in batches:
            before = last = None
            _call(model, batch)
            if sum(map(len, groups)) == len(names):
                break
    finally:
        for hook in hooks:
            hook.remove()
    return groups


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["input"]


@torch.no_grad()
def _inputs_of(model: torch.nn.Module, batches: Sequence[Any], name: str) -> tuple[Tensor, Tensor]:
    """The sum of X.T @ X, and the mean of abs(X) by column, over all rows that the layer is given.

    Raises `ValueError` where these are not finite.
    """
    layer = linear_at(model, name)
    columns = layer.in_features
    products = torch.zeros(columns, columns, device=layer.weight.device)
    sizes = torch.zeros(columns, device=layer.weight.device)
    rows = 0

    def gather(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal rows
        x = _input(args, kwargs).detach().reshape(-1, columns).float()
        products.add_(x.T @ x)
        sizes.add_(x.abs().sum(0))
        rows += len(x)
        raise _Enough

    hook = layer.register_forward_pre_hook(gather, with_kwargs=True)
    try:
        for batch in batches:
            with suppress(_Enough):
                _call(model, batch)
    finally:
        hook.remove()
    if not products.isfinite().all():
        raise ValueError(
            f"`{name}`: the calibration data gives it inputs that are inf, NaN, or too large for the sum of "
            "their squares"
        )
    return products, sizes / max(rows, 1)


def _call(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
