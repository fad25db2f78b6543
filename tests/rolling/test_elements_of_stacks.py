"""Elements of a stack are what was stacked; on CPU they are taken at indices that XLA cannot know."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_pjrt.client.client import client
from torch_pjrt.compile.stacks import elements


@pytest.fixture(autouse=True)
def _started() -> None:
    torch.zeros((), device="pjrt")


@pytest.mark.parametrize("n", [1, 3, 4, 300])
def test_elements_come_in_the_order_that_was_asked_for(n: int) -> None:
    stack = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    order = list(reversed(range(n)))

    taken = jax.jit(lambda x: elements(x, order))(stack)

    assert np.array_equal(np.stack(taken), stack[::-1])


def test_element_of_weakly_typed_numbers_is_weakly_typed() -> None:
    numbers = jax.ShapeDtypeStruct((5,), np.float32, weak_type=True)

    shapes = jax.eval_shape(lambda x: elements(x, range(5)), numbers)

    assert [shape.weak_type for shape in shapes] == [True] * 5


def test_indices_are_unknown_to_xla_on_cpu() -> None:
    if client().chip.platform != "cpu":
        pytest.skip("the way of the CPU")
    compiled = jax.jit(lambda x: elements(x, range(8))).lower(jnp.ones((8, 16))).compile()

    text = compiled.as_text()

    assert text is not None
    assert "dynamic-slice" in text
    assert " sort(" in text
