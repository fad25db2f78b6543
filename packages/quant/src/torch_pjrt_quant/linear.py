"""Linear layers whose weights are few bits, and what makes them of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

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

    `zero` is None where 8 stands for 0, uint8 where zeros are whole numbers, and float32 else.
    """

    names = ("weight", "scale", "zero")
    zero: Tensor | None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **more: Any) -> None:
        """Zeros that are saved as floats stay floats: they may be no whole numbers."""
        saved = state_dict.get(f"{prefix}zero")
        if self.zero is not None and saved is not None and saved.is_floating_point():
            self.zero = self.zero.to(saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args, **more)

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
