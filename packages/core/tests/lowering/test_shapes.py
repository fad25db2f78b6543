"""A shape or dtype that a rule's signature does not allow is found, and signatures cost a program nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest

from checked_shapes import WrongShape, checked, names_shapes
from torch_pjrt.lowering import CORE
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Num

Array = jax.Array

# Those that have more than one operand of more than one dim.
NAMES = """
    mm addmm bmm baddbmm addbmm _addmm_activation _int_mm _grouped_mm _scaled_mm convolution
    convolution_backward native_layer_norm native_layer_norm_backward _fused_rms_norm
    _fused_rms_norm_backward _native_batch_norm_legit_functional native_batch_norm_backward
    native_group_norm native_group_norm_backward _thnn_fused_lstm_cell
    _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
    nll_loss_forward nll_loss_backward mse_loss mse_loss_backward binary_cross_entropy
    embedding_dense_backward _cdist_forward _cdist_backward
    _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_fused_attention_overrideable_backward
    """


@pytest.mark.parametrize("name", NAMES.split())
def test_signature_says_shapes(name: str):
    assert names_shapes(CORE[getattr(aten, name).default].rule)


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
