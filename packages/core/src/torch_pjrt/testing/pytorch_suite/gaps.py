"""Which of PyTorch's tests fail, and why. Strict: a test that passes has no row, one that fails has one.

notyet    we mean to do it
upstream  waits for a change in JAX, XLA or PyTorch
never     has no meaning on an accelerator
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gap:
    """Tests that fail: `tests` are patterns (`file::Class.name`, with `*`), as words."""

    tests: str
    status: str
    why: str

    @property
    def patterns(self) -> list[str]:
        return self.tests.split()


GAPS: tuple[Gap, ...] = (
    Gap(
        "modules::*.test_forward_and_gradients_nn_CTCLoss_pjrt_float32",
        "notyet",
        "fifty steps of sums of exponentials, each rounded in float32: up to 2e-4 apart",
    ),
    Gap(
        "test_shape_ops::*.test_flip_pjrt_float32 test_view_ops::*.test_flatten_pjrt "
        "test_view_ops::*.test_ravel_pjrt",
        "never",
        "PyTorch's quantized dtypes (quint8, qint8, qint32) have no XLA equivalent",
    ),
)
