"""A shape or dtype that a rule's signature does not allow is found, and signatures cost a program nothing."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest

from checked_shapes import WrongShape, checked, names_shapes
from torch_pjrt.lowering import CORE
from torch_pjrt.lowering.table import Rule
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Num

Array = jax.Array

# The files of `lowering/` whose operators take matrices, images or sequences together.
KINDS = """
    attention conv ctc distance embedding embedding_bag grid_sample grouped_matmul loss margin_loss
    matmul norm rnn scaled_matmul softmax
    """


def of_kind(kind: str) -> dict[str, Rule]:
    """The rules of a file that take several arrays, by the operator's name."""
    table = importlib.import_module(f"torch_pjrt.lowering.{kind}").table
    rules = {str(op): lowering.rule for op, lowering in table.items()}
    return {name: rule for name, rule in rules.items() if n_arrays(rule) > 1}


def n_arrays(rule: Rule) -> int:
    """How many arguments are annotated as arrays, in the signature or in the type that holds them."""
    if call := getattr(rule, "call", None):
        return sum("Array" in str(field.type) for field in fields(call))
    hints = dict(inspect.unwrap(rule).__annotations__)
    hints.pop("return", None)
    return sum("Array" in str(hint) for hint in hints.values())


@pytest.mark.parametrize("kind", KINDS.split())
def test_signatures_say_shapes(kind: str):
    rules = of_kind(kind)

    assert rules, "they are elsewhere"
    assert not [name for name, rule in rules.items() if not names_shapes(rule)]


def wrong(op: Any, *shapes: tuple[int, ...], **kwargs: Any) -> str:
    arrays = [jnp.zeros(shape) for shape in shapes]
    with pytest.raises(WrongShape) as found:
        checked(CORE[op].rule)(*arrays, **kwargs)
    return str(found.value)


def test_operand_of_another_size_is_found():
    assert wrong(aten.mm.default, (2, 3), (4, 5)) == (
        "`mat2` of `mm` is float32[4, 5], and the signature says Num[Array, 'inner columns']"
    )


def test_operand_of_another_rank_is_found():
    assert "`mat2` of `bmm`" in wrong(aten.bmm.default, (2, 3, 4), (4, 5))


def test_field_of_a_call_is_found():
    given = [jnp.zeros(shape) for shape in ((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 7, 8))]
    with pytest.raises(WrongShape, match=r"`call\.value` of `scaled_dot_product_attention`"):
        checked(CORE[aten._scaled_dot_product_fused_attention_overrideable.default].rule)(
            None, *given
        )


def test_dtype_is_found():
    rule = checked(CORE[aten._int_mm.default].rule)

    with pytest.raises(WrongShape, match="`self` of `int_mm` is float32"):
        rule(jnp.zeros((2, 3)), jnp.zeros((3, 4), "int8"))


def test_result_is_found():
    def transposed(x: Num[Array, "rows columns"]) -> Num[Array, "columns rows"]:
        return x

    with pytest.raises(WrongShape, match="what `transposed` gives is float32"):
        checked(transposed)(jnp.zeros((2, 3)))


def test_a_program_does_not_import_what_checks_them():
    code = """if True:
        import sys
        sys.modules["jaxtyping"] = sys.modules["beartype"] = None
        import torch_pjrt.lowering
        torch_pjrt.lowering.CORE
        """

    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
