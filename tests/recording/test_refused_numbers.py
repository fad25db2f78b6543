"""Random operators refuse the numbers that the CPU refuses, also after a call with good ones."""

from __future__ import annotations

import pytest
import torch

#   operator          good numbers  bad ones
ROWS = [
    ("bernoulli_",    (0.5,),       (1.5,)),
    ("cauchy_",       (0.0, 1.0),   (0.0, 0.0)),
    ("exponential_",  (2.0,),       (-0.5,)),
    ("geometric_",    (0.5,),       (1.0,)),
    ("log_normal_",   (0.0, 1.0),   (0.0, -1.0)),
    ("normal_",       (0.0, 1.0),   (0.0, -1.0)),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "good", "bad"), ROWS, ids=[row[0] for row in ROWS])
def test_a_number_out_of_range_raises_the_cpus_error(
    operator: str, good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    x = torch.ones(3, device="pjrt")
    getattr(x, operator)(*good)
    with pytest.raises(RuntimeError) as expected:
        getattr(torch.ones(3), operator)(*bad)

    with pytest.raises(RuntimeError) as actual:
        getattr(x, operator)(*bad)

    assert str(actual.value) == str(expected.value)
    assert x.isfinite().all()
