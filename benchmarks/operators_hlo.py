"""What XLA makes of the most used operators and their backwards, ours beside JAX's own functions.

    python benchmarks/operators_hlo.py [--text NAME]

For each operator: how many instructions of the kinds that cost a pass over memory are left in the
optimized HLO of our program, and of the same computation written with JAX's library functions.
`--text linear` prints both programs of one operator.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import torch_pjrt
from torch_pjrt.client.client import Client
from torch_pjrt.compile.programs import forget_programs

KINDS = ("dot", "convolution", "reduce", "reduce-window", "select-and-scatter", "gather", "scatter",
         "transpose", "copy", "fusion", "custom-call", "while", "sort")  # fmt: skip

B, T, C, V = 8, 64, 128, 512


def _layer_norm(x: Any, w: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def _cross_entropy(x: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()


def _conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


def _max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _batch_norm(x: Any, w: Any, b: Any) -> Any:
    mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    wide = (1, -1, 1, 1)
    return (x - mean) * lax.rsqrt(var + 1e-5) * w.reshape(wide) + b.reshape(wide)


def _attention(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).transpose(0, 2, 1, 3)


#  name   in PyTorch    in JAX    shapes of the arguments; "int": indices below V
OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
    "add": (torch.add, jnp.add, [(B, T, C), (C,)]),
    "mul": (torch.mul, jnp.multiply, [(B, T, C), (B, T, C)]),
    "linear": (F.linear, lambda x, w, b: x @ w.T + b, [(B, T, C), (4 * C, C), (4 * C,)]),
    "matmul": (torch.matmul, jnp.matmul, [(B, T, C), (B, C, T)]),
    "sum": (lambda x: x.sum(1), lambda x: x.sum(1), [(B, T, C)]),
    "softmax": (lambda x: F.softmax(x, -1), jax.nn.softmax, [(B, T, C)]),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (C,), w, b), _layer_norm, [(B, T, C), (C,), (C,)],
    ),
    "gelu": (F.gelu, lambda x: jax.nn.gelu(x, approximate=False), [(B, T, C)]),
    "embedding": (lambda w, i: F.embedding(i, w), lambda w, i: w[i], [(V, C), "int"]),
    "cross_entropy": (F.cross_entropy, _cross_entropy, [(B * T, V), "int"]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        _attention,
        [(B, 4, T, 32)] * 3,
    ),
    "conv2d": (
        lambda x, w: F.conv2d(x, w, padding=1), _conv, [(B, 16, 32, 32), (32, 16, 3, 3)],
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        _batch_norm,
        [(B, 16, 32, 32), (16,), (16,)],
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), _max_pool, [(B, 16, 32, 32)]),
}  # fmt: skip


def ours(function: Callable[..., Any], arrays: list[np.ndarray], backward: bool) -> str:
    """The optimized HLO of our program."""
    texts: list[str] = []
    compile_ = Client.compile

    def watched(*args: Any) -> Any:
        compiled, lowered = compile_(*args)
        texts.append(compiled.as_text())
        return compiled, lowered

    tensors = [torch.from_numpy(a).to("pjrt") for a in arrays]
    for t in tensors:
        t.requires_grad_(backward and t.is_floating_point())
    cotangent = torch.ones_like(function(*tensors)).detach() if backward else None
    torch_pjrt.sync()
    result = function(*tensors)
    if backward:
        wanted = [t for t in tensors if t.requires_grad]
        result = torch.autograd.grad(result, wanted, cotangent)
    forget_programs()  # backwards of several operators are the same program
    with mock.patch.object(Client, "compile", watched):
        torch_pjrt.sync()
    del result
    return texts[-1] if texts else ""  # only a view: nothing to run


def _text(function: Callable[..., Any], arguments: Any) -> str:
    return jax.jit(function).lower(*arguments).compile().as_text() or ""


def theirs(function: Callable[..., Any], arrays: list[np.ndarray], backward: bool) -> str:
    """The optimized HLO of the same in JAX."""
    arguments = [jnp.asarray(a) for a in arrays]
    if not backward:
        return _text(function, arguments)
    positions = [i for i, a in enumerate(arrays) if a.dtype == np.float32]
    cotangent = jnp.ones_like(function(*arguments))

    def gradients(cotangent: Any, *args: Any) -> Any:
        def of(*wanted: Any) -> Any:
            given = list(args)
            for position, x in zip(positions, wanted, strict=True):
                given[position] = x
            return function(*given)

        return jax.vjp(of, *[args[i] for i in positions])[1](cotangent)

    return _text(gradients, [cotangent, *arguments])


def counted(text: str) -> Counter[str]:
    """How many instructions of each kind a program has."""
    return Counter(kind for kind in re.findall(r"= \S+ ([a-z-]+)\(", text) if kind in KINDS)


def main() -> None:
    parser = argparse.ArgumentParser(description="HLO of ours and of JAX's, operator by operator.")
    parser.add_argument("--text", metavar="NAME", choices=list(OPERATORS))
    chosen = parser.parse_args().text
    random = np.random.default_rng(0)
    table = Table("operator", "pass", "ours", "JAX", "ours has more")
    for name, (mine, jaxs, shapes) in OPERATORS.items():
        if chosen not in (None, name):
            continue
        n_rows = (B, T) if name == "embedding" else (B * T,)
        arrays = [
            random.integers(0, V, n_rows) if s == "int" else random.standard_normal(s, np.float32)
            for s in shapes
        ]
        for backward in (False, True):
            texts = ours(mine, arrays, backward), theirs(jaxs, arrays, backward)
            if chosen:
                print(
                    f"\n# {'backward' if backward else 'forward'}, ours and JAX's", *texts, sep="\n"
                )
            a, b = map(counted, texts)
            table.add_row(name, "backward" if backward else "forward", *map(_words, (a, b, a - b)))
    Console().print(table)


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))


if __name__ == "__main__":
    main()
