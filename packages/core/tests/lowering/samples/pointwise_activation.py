"""Samples of `lowering/pointwise/activation.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

generator = torch.Generator().manual_seed(0)

X = torch.cat(
    [torch.linspace(-6, 6, 25), torch.tensor([0.0, -0.0, 3.0, -3.0, 30.0, -30.0, 0.5, -0.5])]
)
GRAD = torch.randn(X.shape, generator=generator)
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf])
ZERO_DIM, EMPTY = torch.tensor(0.7), torch.zeros(0, 2)
INTS = torch.tensor([-3, 0, 4])
INPUTS = [X, X.double(), X.bfloat16(), X.half(), ZERO_DIM, EMPTY]
PAIRS = [
    (GRAD, X),
    (GRAD.double(), X.double()),
    (GRAD.bfloat16(), X.bfloat16()),
    (GRAD.half(), X.half()),
    (torch.tensor(2.0), ZERO_DIM),
]

FORWARD: list[tuple[object, tuple[object, ...]]] = [
    (aten.silu.default, ()),
    (aten.threshold.default, (0.5, 20)),
    (aten.hardtanh.default, (-1.5, 2)),
    (aten.hardtanh.default, ()),
    (aten.leaky_relu.default, ()),
    (aten.leaky_relu.default, (0.2,)),
    (aten.elu.default, ()),
    (aten.elu.default, (1.6, 1.05, 0.9)),
    (aten.celu.default, (1.5,)),
    (aten.softplus.default, ()),
    (aten.softplus.default, (2, 5)),
    (aten.hardsigmoid.default, ()),
    (aten.hardswish.default, ()),
    (aten.mish.default, ()),
    (aten.hardshrink.default, ()),
    (aten.softshrink.default, (0.8,)),
    (aten.softshrink.default, (0.3,)),
]

BACKWARD: list[tuple[object, tuple[object, ...]]] = [
    (aten.silu_backward.default, ()),
    (aten.threshold_backward.default, (0.5,)),
    (aten.hardtanh_backward.default, (-1.5, 2)),
    (aten.leaky_relu_backward.default, (0.2, False)),
    (aten.softplus_backward.default, (2, 5)),
    (aten.hardsigmoid_backward.default, ()),
    (aten.hardswish_backward.default, ()),
    (aten.mish_backward.default, ()),
    (aten.hardshrink_backward.default, (0.5,)),
    (aten.softshrink_backward.default, (0.8,)),
]

OUTPUTS = [(grad, x.sigmoid()) for grad, x in PAIRS]
COMPLEX = torch.tensor([0.5 + 0.1j, -0.2j])
MATRIX = X[:32].reshape(2, 4, 4)


def _same_output(actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    torch.testing.assert_close(actual[0], expected[0], equal_nan=True)


SAMPLES: list[Sample] = [
    *(sample(op, x, *rest) for op, rest in FORWARD for x in INPUTS),
    *(sample(op, SPECIAL, *rest) for op, rest in FORWARD),
    *(sample(op, grad, x, *rest) for op, rest in BACKWARD for grad, x in PAIRS),
    *(sample(aten.gelu.default, x, approximate=how) for x in INPUTS for how in ("none", "tanh")),
    sample(aten.gelu.default, X),
    *(
        sample(aten.gelu_backward.default, grad, x, approximate=how)
        for grad, x in PAIRS
        for how in ("none", "tanh")
    ),
    sample(aten.threshold.default, INTS, 1, 7),
    sample(aten.hardtanh.default, INTS, -2, 2),
    *(
        sample(op, grad, x)
        for op in (aten.sigmoid_backward.default, aten.tanh_backward.default)
        for grad, x in OUTPUTS
    ),
    *(
        sample(op, COMPLEX, COMPLEX.flip(0))
        for op in (aten.sigmoid_backward.default, aten.tanh_backward.default)
    ),
    *(
        sample(aten.elu_backward.default, grad, 1.5, 1.1, 0.9, is_result, x)
        for grad, x in PAIRS
        for is_result in (False, True)
    ),
    sample(aten.leaky_relu_backward.default, GRAD, X, 0.1, True),
    *(
        sample(aten._prelu_kernel.default, MATRIX, w)
        for w in (torch.tensor(0.3), torch.tensor([0.1, 0.2, 0.3, 0.4]).reshape(1, 4, 1))
    ),
    *(
        sample(aten._prelu_kernel_backward.default, GRAD[:32].reshape(2, 4, 4), MATRIX, w)
        for w in (torch.full((1, 1, 1), 0.3), torch.tensor([0.1, 0.2, 0.3, 0.4]).reshape(1, 4, 1))
    ),
    *(
        sample(aten.glu.default, MATRIX.to(dtype), dim)
        for dim in (-1, 0, 1)
        for dtype in (torch.float32, torch.bfloat16)
    ),
    *(
        sample(aten.glu_backward.default, torch.ones_like(MATRIX).chunk(2, dim)[0], MATRIX, dim)
        for dim in (-1, 1)
    ),
    *(
        sample(
            aten.rrelu_with_noise_backward.default,
            GRAD,
            X,
            torch.full_like(X, 0.2),
            0.1,
            0.3,
            training,
            False,
        )
        for training in (False, True)
    ),
    *(
        Sample(
            aten.log_sigmoid_forward.default,
            (x,),
            compare=_same_output,
            why="CPU's buffer has a layout of its own",
        )
        for x in [*INPUTS, SPECIAL]
    ),
    *(sample(aten.log_sigmoid_backward.default, grad, x, torch.exp(-x.abs())) for grad, x in PAIRS),
]
