"""Linear layers whose weights are few bits, and what makes them of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from torch_pjrt_quant import operators, packing


class QuantizedLinear(torch.nn.Module):
    """A linear layer with a weight of few bits: `Int8Linear`, `Int4Linear`, `Nf4Linear`, `Float8Linear`.

    Its tensors are buffers (`weight`, `scale`, `zero` where there is one), so they are saved, loaded and
    moved as others are, and no optimizer takes them. `bias` is a parameter.
    Gradients reach the input and the bias.
    """

    names: ClassVar[tuple[str, ...]] = ("weight", "scale")
    weight: Tensor
    scale: Tensor
    bias: torch.nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, tensors: Any, bias: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        for name, tensor in zip(self.names, tensors, strict=True):
            self.register_buffer(name, tensor)
        self.register_parameter("bias", bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        """`to(device)` moves the tensors; `to(dtype)` and `half()` leave weights and scales as they are."""
        before = {name: getattr(self, name) for name in self.names}
        super()._apply(fn, recurse)
        for name, tensor in before.items():
            moved = getattr(self, name)
            if tensor is not None and moved.dtype != tensor.dtype:
                setattr(self, name, tensor.to(moved.device))
        return self

    def dequantized(self) -> Tensor:
        """The whole weight in float32: out_features x in_features. For looking at it, not for computing."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """What is printed of it."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class Int8Linear(QuantizedLinear):
    """`weight` is int8 (out_features x in_features), `scale` float32 (out_features, perhaps x groups).

    dynamic    the input becomes int8, too, with a scale for each row, and products are integers.
    """

    def __init__(self, *args: Any, dynamic: bool = False) -> None:
        super().__init__(*args)
        self.dynamic = dynamic

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features), in the dtype of the input."""
        operator = operators.linear_int8_dynamic if self.dynamic else operators.linear_int8
        return operator(input, self.weight, self.scale, self.bias)

    def dequantized(self) -> Tensor:
        return packing.from_int8(self.weight, self.scale)


class Float8Linear(QuantizedLinear):
    """`weight` is float8_e4m3fn (out_features x in_features), `scale` float32 as for `Int8Linear`.

    dynamic    the input becomes float8, too, with a scale for each row; not where the weight has groups.
    """

    def __init__(self, *args: Any, dynamic: bool = False) -> None:
        super().__init__(*args)
        self.dynamic = dynamic

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features), in the dtype of the input."""
        operator = operators.linear_float8_dynamic if self.dynamic else operators.linear_float8
        return operator(input, self.weight, self.scale, self.bias)

    def dequantized(self) -> Tensor:
        return packing.from_int8(self.weight, self.scale)


class Int4Linear(QuantizedLinear):
    """`weight` is packed uint8 (out_features x in_features / 2), `scale` and `zero` out_features x groups.

    `zero` is None where 8 stands for 0.
    """

    names = ("weight", "scale", "zero")
    zero: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features), in the dtype of the input."""
        return operators.linear_int4(input, self.weight, self.scale, self.zero, self.bias)

    def dequantized(self) -> Tensor:
        return packing.from_int4(self.weight, self.scale, self.zero)


class OrderedInt4Linear(Int4Linear):
    """An `Int4Linear` with its columns in the order of their groups: `order` says which input each takes.

    GPTQ's checkpoints with `desc_act` have such layers.
    """

    order: Tensor

    def __init__(self, *args: Any, order: Tensor) -> None:
        super().__init__(*args)
        self.register_buffer("order", order)

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features), in the dtype of the input."""
        return super().forward(input.index_select(-1, self.order))

    def dequantized(self) -> Tensor:
        return super().dequantized()[:, self.order.argsort()]


class ScaledInt4Linear(Int4Linear):
    """An `Int4Linear` whose inputs are multiplied by `factor` (in_features) first: what AWQ makes."""

    factor: Tensor

    def __init__(self, *args: Any, factor: Tensor) -> None:
        super().__init__(*args)
        self.register_buffer("factor", factor)

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features), in the dtype of the input."""
        return super().forward(input * self.factor.to(input.dtype))

    def dequantized(self) -> Tensor:
        return super().dequantized() * self.factor


class Nf4Linear(QuantizedLinear):
    """`weight` is packed uint8 (out_features x in_features / 2), `scale` out_features x groups."""

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features), in the dtype of the input."""
        return operators.linear_nf4(input, self.weight, self.scale, self.bias)

    def dequantized(self) -> Tensor:
        return packing.from_nf4(self.weight, self.scale)


@dataclass(frozen=True, slots=True)
class Int8:
    """int8 with a scale for each row. `dynamic=True`: inputs, too."""

    dynamic: bool = False

    def layer(self, linear: torch.nn.Linear) -> QuantizedLinear:
        """The layer in the place of another one."""
        return Int8Linear(*_of(linear, packing.to_int8(linear.weight)), dynamic=self.dynamic)


@dataclass(frozen=True, slots=True)
class Float8:
    """float8_e4m3fn with a scale for each row. `dynamic=True`: inputs, too."""

    dynamic: bool = False

    def layer(self, linear: torch.nn.Linear) -> QuantizedLinear:
        """The layer in the place of another one."""
        return Float8Linear(*_of(linear, packing.to_float8(linear.weight)), dynamic=self.dynamic)


@dataclass(frozen=True, slots=True)
class Int4:
    """Four bits with a scale, and a zero unless `symmetric`, for each `group_size` columns of a row."""

    group_size: int = 128
    symmetric: bool = False

    def layer(self, linear: torch.nn.Linear) -> QuantizedLinear:
        """The layer in the place of another one."""
        made = packing.to_int4(linear.weight, self.group_size, symmetric=self.symmetric)
        return Int4Linear(*_of(linear, made))


@dataclass(frozen=True, slots=True)
class Nf4:
    """NF4, as in QLoRA, with a scale for each `group_size` columns of a row."""

    group_size: int = 64

    def layer(self, linear: torch.nn.Linear) -> QuantizedLinear:
        """The layer in the place of another one."""
        return Nf4Linear(*_of(linear, packing.to_nf4(linear.weight, self.group_size)))


def _of(linear: torch.nn.Linear, tensors: Any) -> tuple[Any, ...]:
    return linear.in_features, linear.out_features, tensors, linear.bias


Config = Int8 | Int4 | Nf4 | Float8
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
    from torch_pjrt_quant.sharding import lie_as

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
