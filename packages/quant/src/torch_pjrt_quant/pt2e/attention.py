"""Attention as two products around a softmax, so that the products can be of int8.

before  scaled_dot_product_attention(q, k, v)
after   softmax(matmul(q * scale, k.mT)) ... matmul(..., v)

Heads of keys and values that queries share (`enable_gqa`) are repeated in front of the products.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_pjrt.plugin import aten

ATTENTION = aten.scaled_dot_product_attention.default


def split_attention(model: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with its attention in products. What has dropout stays."""
    for node in list(model.graph.nodes):
        if node.op == "call_function" and node.target is ATTENTION:
            _split(model, node)
    model.recompile()
    return model


def _split(model: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if given.get("dropout_p"):
        return
    graph, mask = model.graph, given.get("attn_mask")
    look, width = query.meta["val"], query.meta["val"].shape[-1]
    factor = given.get("scale")
    factor = 1 / math.sqrt(width) if factor is None else factor

    def call(op: object, *args: object, **kwargs: object) -> torch.fx.Node:
        made = graph.call_function(op, args, kwargs)  # type: ignore[arg-type]
        known = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        made.meta["val"] = op(*known, **kwargs)  # type: ignore[operator]
        return made

    def repeated(x: torch.fx.Node) -> torch.fx.Node:
        """Each head as often as queries share it."""
        *before, heads, length, last = x.meta["val"].shape
        times = look.shape[-3] // heads
        wide = call(
            aten.expand.default,
            call(aten.unsqueeze.default, x, -3),
            [*before, heads, times, length, last],
        )
        return call(aten.reshape.default, wide, [*before, heads * times, length, last])

    with graph.inserting_before(node), look.fake_mode:
        if given.get("enable_gqa"):
            key, value = repeated(key), repeated(value)
        turned = call(aten.transpose.int, key, -2, -1)
        scores = call(aten.matmul.default, call(aten.mul.Tensor, query, factor), turned)
        if given.get("is_causal"):
            ones = call(aten.new_ones.default, scores, scores.meta["val"].shape[-2:])
            future = call(aten.triu.default, call(aten.to.dtype, ones, torch.bool), 1)
            scores = call(aten.masked_fill.Scalar, scores, future, -math.inf)
        if mask is not None and mask.meta["val"].dtype is torch.bool:
            hidden = call(aten.logical_not.default, mask)
            scores = call(aten.masked_fill.Scalar, scores, hidden, -math.inf)
        elif mask is not None:
            scores = call(aten.add.Tensor, scores, mask)
        weights = call(aten.softmax.int, scores, -1)
        result = call(aten.matmul.default, weights, value)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
