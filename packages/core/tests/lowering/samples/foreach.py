"""Samples of `_foreach_*`: two tensors of different shapes in each list."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.lowering import foreach
from torch_pjrt.overloads import aten


def pair(low: float = 0.1, high: float = 0.9, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [low + (high - low) * torch.rand(shape, generator=g) for shape in ((2, 3), (4,))]


SAMPLES: list[Sample] = [
    *[sample(packet.default, pair()) for packet, _ in foreach.UNARY],
    *[
        sample(getattr(packet, overload), pair(), other)
        for packet, _, overloads in foreach.BINARY
        for overload, other in (
            ("Scalar", 0.5),
            ("List", pair(seed=1)),
            ("ScalarList", [0.5, 2.0]),
            ("Tensor", torch.tensor(3.0)),
        )
        if overload in overloads
    ],
    sample(aten._foreach_add.List, pair(), pair(seed=1), alpha=2),
    *[
        sample(op, pair(), pair(seed=1), pair(seed=2), value)
        for packet in (aten._foreach_addcmul, aten._foreach_addcdiv)
        for op, value in (
            (packet.Scalar, 0.5),
            (packet.ScalarList, [0.5, 2.0]),
            (packet.Tensor, torch.tensor([0.5, 2.0])),
        )
    ],
    sample(aten._foreach_lerp.Scalar, pair(), pair(seed=1), 0.1),
    sample(aten._foreach_lerp.ScalarList, pair(), pair(seed=1), [0.1, 0.7]),
    sample(aten._foreach_lerp.List, pair(), pair(seed=1), pair(seed=2)),
    sample(aten._foreach_pow.Scalar, pair(), 2),
    sample(aten._foreach_pow.ScalarList, pair(), [0.5, 3.0]),
    sample(aten._foreach_pow.List, pair(), pair(seed=1)),
    sample(aten._foreach_norm.Scalar, pair()),
    sample(aten._foreach_norm.Scalar, pair(), 1),
    sample(aten._foreach_norm.Scalar, pair(), float("inf")),
    sample(aten._foreach_clone.default, pair()),
    sample(aten._foreach_zero.default, pair()),
    sample(aten._foreach_copy.default, pair(), pair(seed=1)),
]
