"""Samples of `_fused_*`: two parameters of different shapes, with and without what is optional."""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten


def pair(seed: int, *, positive: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    g = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=g).to(dtype) for shape in ((2, 3), (4,))]
    return [x.abs() for x in made] if positive else made


def adam(op: Any, lr: Any = 1e-2, *, amsgrad: bool = False, **more: Any) -> Sample:
    lists = [pair(0), pair(1), pair(2), pair(3, positive=True)]
    largest = pair(4, positive=True) if amsgrad else []
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    settings = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
    return sample(op, *lists, largest, steps, lr=lr, amsgrad=amsgrad, **{**settings, **more})


def sgd(op: Any, lr: Any = 0.1, *, buffers: bool = True, **more: Any) -> Sample:
    settings = {
        "weight_decay": 0.1,
        "momentum": 0.9 if buffers else 0.0,
        "dampening": 0.2,
        "nesterov": False,
        "maximize": False,
        "is_first_step": False,
    }
    lists = [pair(0), pair(1), pair(2) if buffers else []]
    return sample(op, *lists, lr=lr, **{**settings, **more})


def adagrad(op: Any, lr: Any = 0.1, **more: Any) -> Sample:
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    settings = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-10, "maximize": False}
    lists = [pair(0), pair(1), pair(2, positive=True)]
    return sample(op, *lists, steps, lr=lr, **{**settings, **more})


SAMPLES: list[Sample] = [
    *[
        row
        for packet in (aten._fused_adam, aten._fused_adamw)
        for row in (
            adam(packet.default),
            adam(packet.default, amsgrad=True),
            adam(packet.default, maximize=True),
            adam(packet.default, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0)),
            adam(packet.default, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(1.0)),
            adam(packet.tensor_lr, torch.tensor(1e-2)),
        )
    ],
    sgd(aten._fused_sgd.default),
    sgd(aten._fused_sgd.default, buffers=False),
    sgd(aten._fused_sgd.default, is_first_step=True),
    sgd(aten._fused_sgd.default, nesterov=True, dampening=0.0),
    sgd(aten._fused_sgd.default, maximize=True),
    sgd(aten._fused_sgd.tensor_lr, torch.tensor(0.1)),
    adagrad(aten._fused_adagrad.default),
    adagrad(aten._fused_adagrad.default, maximize=True, lr_decay=0.0),
    adagrad(aten._fused_adagrad.default, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0)),
    adagrad(aten._fused_adagrad.tensor_lr, torch.tensor(0.1)),
]
