"""What authors of passes and rules build with: nodes made by a rewrite, functions under 32 bits."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from textwrap import indent

import jax
import jax.numpy as jnp
import pytest

from torch_pjrt.errors import InvalidGraph, LoweringError
from torch_pjrt.graph.text import text
from torch_pjrt.passes import building
from torch_pjrt.plugin import Builder, Graph, Node, Ref, Stage, aten, rewritten, run_passes
from torch_pjrt.plugin.rules import without_x64
from torch_pjrt.testing.graphs import parse


@dataclass(frozen=True, slots=True)
class SplitAddcmul:
    name: str = "split-addcmul"
    stage: Stage = Stage.REWRITE

    def __call__(self, graph: Graph) -> Graph:
        return rewritten(graph, self.rewrite)

    def rewrite(self, node: Node, build: Builder) -> Ref | None:
        if node.op is not aten.addcmul.default:
            return None  # it stays
        x, a, b = build.args
        return build(aten.add.Tensor, x, build(aten.mul.Tensor, a, b), alpha=build.kwargs["value"])


def test_pass_of_this_file_is_that_of_the_docstring():
    assert indent(inspect.getsource(SplitAddcmul), "    ") in (building.__doc__ or "")


def test_rewrite_puts_nodes_in_the_place_of_one():
    graph = parse(
        """
        i0: float32[2, 3]
        i1: float32[3]
        v0: float32[2, 3] = aten.addcmul.default(i0, i1, i1, value=float#4)
        v1: float32[2, 3] = aten.exp.default(v0)
        return v1
        """
    )

    after = run_passes([SplitAddcmul()], graph)

    assert after == parse(
        """
        i0: float32[2, 3]
        i1: float32[3]
        v2: float32[3] = aten.mul.Tensor(i1, i1)
        v3: float32[2, 3] = aten.add.Tensor(i0, v2, alpha=float#4)
        v1: float32[2, 3] = aten.exp.default(v3)
        return v1
        """
    )


def test_rewrite_may_give_what_was_there_before():
    graph = parse("i0: float32[3]\nv0 = aten.alias.default(i0)\nreturn v0")

    after = rewritten(graph, lambda node, build: build.inputs[0])

    assert text(after) == "i0: float32[3]\nreturn i0"


def test_rewrite_makes_operators_of_several_results():
    graph = parse("i0: float32[4]\nv0: float32[2] = a_test.op(i0)\nreturn v0")

    def rewrite(node: Node, build: Builder) -> Ref:
        return build(aten.split.Tensor, build.inputs[0], 2)[1]

    after = rewritten(graph, rewrite).verify("split")

    assert after.outputs == (2,)
    assert [n.signature.returns for n in after.nodes] == ["list"]


def test_rewrite_that_gives_too_few_values_is_an_error():
    graph = parse("i0: float32[4]\nv0: float32[4] = aten.exp.default(i0)\nreturn v0")

    with pytest.raises(InvalidGraph, match="returned 0 values"):
        rewritten(graph, lambda node, build: [])


def test_call_that_pytorch_refuses_is_an_error_in_the_pass():
    graph = parse("i0: float32[4]\nv0: float32[4] = aten.exp.default(i0)\nreturn v0")

    with pytest.raises(RuntimeError):
        rewritten(graph, lambda node, build: build(aten.mm.default, *build.inputs, *build.inputs))
    with pytest.raises(TypeError, match="needs the argument `other`"):
        rewritten(graph, lambda node, build: build(aten.mul.Tensor, *build.inputs))


def test_function_without_x64_has_32_bits_and_refuses_more():
    @without_x64
    def kernel(x):
        return x + jnp.arange(3)

    with jax.enable_x64(True):
        assert kernel(jnp.ones(3, "int32")).dtype == "int32"
        with pytest.raises(LoweringError, match=r"saw: int64\[3\]"):
            kernel(jnp.ones(3, "int64"))
        assert jnp.arange(3).dtype == "int64"
