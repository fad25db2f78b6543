"""Samples of `lowering/pointwise/bitwise.py`."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

X = torch.tensor([[-7, -1, 0], [1, 5, 127]])
Y = torch.tensor([3, 0, 6])
BOOLS = torch.tensor([True, False, True])
SHORT = X.to(torch.int8)
BYTES = X.abs().to(torch.uint8)
PAIRS = [(X, Y), (SHORT, Y), (SHORT, Y.to(torch.int8)), (BYTES, Y), (X.int(), torch.tensor(3))]
LOGICAL = [*PAIRS, (BOOLS, ~BOOLS), (BOOLS, Y), (torch.zeros(0, 3, dtype=torch.int64), Y)]
PACKETS = (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor)
SHIFTS = (aten.bitwise_left_shift, aten.bitwise_right_shift)
FAR = torch.tensor([-1, 63, 64])

SAMPLES: list[Sample] = [
    *(sample(aten.bitwise_not.default, x) for x in (X, SHORT, BYTES, BOOLS, torch.tensor(3))),
    *(sample(packet.Tensor, x, y) for packet in PACKETS for x, y in LOGICAL),
    *(sample(packet.Scalar, x, 6) for packet in PACKETS for x in (X, BYTES)),
    *(sample(packet.Scalar, BOOLS, True) for packet in PACKETS),
    *(sample(packet.Scalar_Tensor, 6, x) for packet in PACKETS for x in (X, BYTES)),
    *(sample(packet.Tensor, x, y) for packet in SHIFTS for x, y in PAIRS),
    *(sample(packet.Tensor, X, FAR) for packet in SHIFTS),
    *(sample(packet.Tensor_Scalar, x, 2) for packet in SHIFTS for x in (X, SHORT, BYTES)),
    *(sample(packet.Scalar_Tensor, 9, Y) for packet in SHIFTS),
    *(sample(op, X, Y) for op in (aten.__lshift__.Tensor, aten.__rshift__.Tensor)),
    *(sample(op, X, 2) for op in (aten.__lshift__.Scalar, aten.__rshift__.Scalar)),
]
