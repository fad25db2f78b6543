"""`lower_pt2e`: what PT2E has converted, in products of integers.

before  dequantize(x) @ dequantize(w).T + bias
after   (product_int8(x, w) - zero of x * sums of w) * (scale of x * scale of w) + bias

A sum of products of differences from zeros is a sum of products, less sums of each side: exact in int32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_pjrt.plugin import aten
from torch_pjrt_quant import integers, operators

Node = torch.fx.Node
GraphModule = torch.fx.GraphModule


@dataclass(slots=True, eq=False)
class _Small:
    """A value of int8 in the graph, and what it stands for: `(numbers - zero) * scale`.

    scale, zero    nodes of tensors, or Python numbers; of a weight tensors that are known.
    rows           whether scales and zeros are one for each row (the last dim) of an activation.
    """

    numbers: Node
    scale: Any
    zero: Any
    rows: bool = False


def lower_pt2e(model: GraphModule) -> GraphModule:
    """Change what `convert_pt2e` gives, in place, so that products of quantized values are products of int8.

    Linear layers, convolutions, embeddings, `matmul` and `bmm`, quantized by `PjrtQuantizer`: activations of
    int8 or uint8 with a scale for each tensor or each row (token), weights of int8 with a scale for each
    channel or one for all, without zeros. A linear layer whose input is not quantized keeps a weight of
    int8. What is quantized otherwise stays as it is. Scales are applied in float32, and results have the
    dtype that they had. The module loses weights that its graph no longer reads. Returns it.
    """
    for node in list(model.graph.nodes):
        rewrite = _REWRITES.get(node.target) if node.op == "call_function" else None
        if rewrite is None:
            continue
        lowering = _Lowering(model, node)
        with model.graph.inserting_before(node):
            result = rewrite(lowering)
            value = node.meta.get("val")
            if result is not None and value is not None and value.dtype is not torch.float32:
                result = lowering.call(aten.to.dtype, result, value.dtype)
        if result is not None:
            result.meta["val"] = value
            node.replace_all_uses_with(result)
    model.graph.eliminate_dead_code()
    model.recompile()
    _drop_unread(model)
    return model


def _drop_unread(model: GraphModule) -> None:
    """Take away parameters and buffers that the graph does not read: the wide weights, too."""
    read = {str(n.target) for n in model.graph.nodes if n.op in ("get_attr", "call_module")}
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    for target, _ in tensors:
        if not any(target == name or target.startswith(f"{name}.") for name in read):
            owner, _, name = target.rpartition(".")
            delattr(model.get_submodule(owner), name)


class _Lowering:
    """What one operator's rewrite is made with."""

    def __init__(self, model: GraphModule, node: Node) -> None:
        self.model, self.node = model, node
        names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
        defaults = {
            a.name: a.default_value
            for a in node.target._schema.arguments  # type: ignore[union-attr]
            if a.has_default_value()
        }
        self.given = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        return self.model.graph.call_function(op, args, kwargs)

    def constant(self, value: Tensor) -> Node:
        """A buffer of the module's."""
        n = 0
        while hasattr(self.model, name := f"_lowered_{n}"):
            n += 1
        self.model.register_buffer(name, value)
        return self.model.graph.get_attr(name)

    def known(self, node: Any) -> Tensor | None:
        """The tensor of a parameter or buffer."""
        if not (isinstance(node, Node) and node.op == "get_attr"):
            return None
        owner: Any = self.model
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        return owner.detach()

    def small(self, name: str) -> _Small | None:
        """An argument that is a dequantized activation."""
        node = self.given[name]
        packet, args = _decomposed(node)
        if packet not in ("dequantize_per_tensor", "dequantize_per_token"):
            return None
        numbers, scale, zero = args[0], args[1], args[2]
        dtype = args[5]
        if dtype not in (torch.int8, torch.uint8):
            return None
        if dtype is torch.uint8:  # the same numbers, 128 lower
            wide = self.call(aten.sub.Scalar, self.call(aten.to.dtype, numbers, torch.int16), 128)
            numbers = self.call(aten.to.dtype, wide, torch.int8)
            zero = zero - 128 if isinstance(zero, int) else self.call(aten.sub.Scalar, zero, 128)
        return _Small(numbers, scale, zero, rows=packet == "dequantize_per_token")

    def weight(self, name: str) -> tuple[_Small, Tensor] | None:
        """An argument that is a dequantized weight without zeros, and its numbers; scales are a tensor."""
        packet, args = _decomposed(self.given[name])
        numbers = self.known(args[0]) if args else None
        if numbers is None or numbers.dtype is not torch.int8:
            return None
        if packet == "dequantize_per_tensor" and args[2] == 0:
            return _Small(args[0], torch.tensor(args[1], device=numbers.device), 0), numbers
        if packet != "dequantize_per_channel" or args[3] != 0:
            return None
        scale, zero = self.known(args[1]), self.known(args[2])
        if scale is None or (args[2] is not None and (zero is None or bool(zero.any()))):
            return None
        return _Small(args[0], scale, 0), numbers

    def less_zeros(self, y: Node, zero: Any, sums: Tensor) -> Node:
        """`y` (int32) less the zero of an activation times sums of the weight, which broadcast to `y`."""
        if isinstance(zero, int):
            return self.call(aten.sub.Tensor, y, self.constant((sums * zero).int())) if zero else y
        by = self.call(aten.mul.Tensor, self.int32(zero), self.constant(sums.int()))
        return self.call(aten.sub.Tensor, y, by)

    def int32(self, node: Node) -> Node:
        return self.call(aten.to.dtype, node, torch.int32)

    def scaled(self, y: Node, scale: Any, weights: Tensor | None = None) -> Node:
        """`y` as float32 times scales."""
        y = self.call(aten.to.dtype, y, torch.float32)
        if not isinstance(scale, Node):
            if weights is None:
                return self.call(aten.mul.Tensor, y, scale)
            return self.call(aten.mul.Tensor, y, self.constant(weights.float() * scale))
        y = self.call(aten.mul.Tensor, y, self.call(aten.to.dtype, scale, torch.float32))
        if weights is None:
            return y
        return self.call(aten.mul.Tensor, y, self.constant(weights.float()))


def _decomposed(node: Any) -> tuple[str, Sequence[Any]]:
    """Name and arguments of a call of `quantized_decomposed`."""
    if not (isinstance(node, Node) and node.op == "call_function"):
        return "", ()
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.name.startswith("quantized_decomposed::"):
        return "", ()
    return schema.name.partition("::")[2], node.args


def _shape(dequantized: Node) -> torch.Size:
    """Of a dequantized value: that of what was quantized."""
    while "val" not in dequantized.meta:
        dequantized = dequantized.args[0]  # type: ignore[assignment]
    return dequantized.meta["val"].shape


def _linear(at: _Lowering) -> Node | None:
    weight = at.weight("weight")
    if weight is None:
        return None
    x, bias = at.small("input"), at.given["bias"]
    small, numbers = weight
    if x is None:
        scale = small.scale.float().expand(len(numbers)).contiguous()
        held = at.constant(scale)
        return at.call(
            operators.linear_int8._opoverload, at.given["input"], small.numbers, held, bias
        )
    y = at.call(integers.product_int8._opoverload, x.numbers, small.numbers)
    y = at.less_zeros(y, x.zero, numbers.long().sum(1))
    y = at.scaled(y, x.scale, small.scale)
    return y if bias is None else at.call(aten.add.Tensor, y, bias)


def _convolution(at: _Lowering) -> Node | None:
    weight, x = at.weight("weight"), at.small("input")
    if weight is None or x is None or x.rows:
        return None
    small, numbers = weight
    n, bias = numbers.ndim - 2, at.given["bias"]
    stride, padding, dilation = (
        [given[0]] * n if len(given) == 1 else list(given)
        for given in (at.given[name] for name in ("stride", "padding", "dilation"))
    )
    outer = (-1, *[1] * n)
    if isinstance(x.zero, int):
        zero = at.constant(torch.tensor([x.zero], dtype=torch.int8, device=numbers.device))
    else:
        zero = at.call(aten.to.dtype, x.zero, torch.int8)
    operator = integers.convolution_int8._opoverload
    groups = at.given["groups"]
    y = at.call(operator, x.numbers, small.numbers, zero, stride, padding, dilation, groups)
    y = at.less_zeros(y, x.zero, numbers.long().flatten(1).sum(1).view(outer))
    y = at.scaled(y, x.scale, small.scale.view(outer) if small.scale.ndim else small.scale)
    if bias is None:
        return y
    return at.call(aten.add.Tensor, y, at.call(aten.view.default, bias, outer))


def _matmul(at: _Lowering) -> Node | None:
    """Two activations: `(a - za) @ (b - zb)` is `a @ b - za * sums of b - zb * sums of a + n * za * zb`."""
    names = [a.name for a in at.node.target._schema.arguments]  # type: ignore[union-attr]
    a, b = at.small(names[0]), at.small(names[1])
    if a is None or b is None or a.rows or b.rows:
        return None
    shapes = [_shape(at.given[name]) for name in names]
    if min(map(len, shapes)) < 2 or not (len(shapes[1]) == 2 or shapes[0][:-2] == shapes[1][:-2]):
        return None
    turned = at.call(aten.transpose.int, b.numbers, -2, -1)
    y = at.call(integers.product_int8._opoverload, a.numbers, turned)
    y = _less(at, y, a.zero, b.numbers, -2)
    y = _less(at, y, b.zero, a.numbers, -1)
    both = _times(at, _times(at, a.zero, b.zero), shapes[0][-1])
    if both != 0:
        y = at.call(aten.add.Tensor, y, both)
    return at.scaled(at.scaled(y, a.scale), b.scale)


def _less(at: _Lowering, y: Node, zero: Any, other: Node, dim: int) -> Node:
    if isinstance(zero, int) and zero == 0:
        return y
    sums = at.call(aten.sum.dim_IntList, at.int32(other), [dim], True, dtype=torch.int32)
    zero = zero if isinstance(zero, int) else at.int32(zero)
    return at.call(aten.sub.Tensor, y, at.call(aten.mul.Tensor, sums, zero))


def _times(at: _Lowering, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    a, b = (at.int32(x) if isinstance(x, Node) else x for x in (a, b))
    return at.call(aten.mul.Tensor, *((b, a) if isinstance(a, int) else (a, b)))


def _embedding(at: _Lowering) -> Node | None:
    weight = at.weight("weight")
    if weight is None:
        return None
    small, indices = weight[0], at.given["indices"]
    rows = at.call(aten.embedding.default, small.numbers, indices)
    wide = at.call(aten.to.dtype, rows, torch.float32)
    if small.scale.ndim == 0:
        return at.call(aten.mul.Tensor, wide, float(small.scale))
    scale = at.constant(small.scale.float()[:, None])
    return at.call(aten.mul.Tensor, wide, at.call(aten.embedding.default, scale, indices))


_REWRITES: dict[Any, Callable[[_Lowering], Node | None]] = {
    aten.linear.default: _linear,
    aten.conv1d.default: _convolution,
    aten.conv2d.default: _convolution,
    aten.conv3d.default: _convolution,
    aten.matmul.default: _matmul,
    aten.bmm.default: _matmul,
    aten.embedding.default: _embedding,
}
