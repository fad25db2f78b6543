"""The autocast rules of the CPU name what PyTorch casts within `torch.autocast("cpu")`."""

from __future__ import annotations

import torch

from torch_pjrt_cpu.autocast import RULES

# PyTorch casts them behind another operator, or in what they are made of.
MORE = {"lstm.input", "_transformer_encoder_layer_fwd"}


def test_every_operator_that_pytorch_casts_has_a_rule_and_no_other() -> None:
    cast = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")
    }

    assert {name for _, name in RULES.rows()} - MORE == cast
