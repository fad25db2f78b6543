"""The autocast rules of a device that has none of its own are those of PyTorch's accelerators."""

from __future__ import annotations

import pytest
import torch

from torch_pjrt.errors import PluginError
from torch_pjrt.plugin import AutocastRules, Device
from torch_pjrt.plugin.autocast import ACCELERATOR

# PyTorch casts recurrent layers behind an operator of cuDNN, and paddings given by name in what they are.
MORE = {
    *(f"{kind}.{given}" for kind in ("gru", "lstm", "rnn_relu", "rnn_tanh") for given in ("data", "input")),
    *(f"conv{n}d.padding" for n in (1, 2, 3)),
    "_transformer_encoder_layer_fwd",
}  # fmt: skip

# PyTorch 2.11 runs it as it is, and 2.13 casts.
LATER = {"rms_norm"}


class Other(Device):
    name = "OTHER"

    def objection(self) -> str | None:
        return None

    def start(self) -> list[object]:
        return []


def test_they_are_the_default() -> None:
    assert Other().autocast_rules() is ACCELERATOR


def test_every_operator_that_pytorch_casts_has_a_rule_and_no_other() -> None:
    cast = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastXPU")
    }

    cast -= {name for name in cast if "imname" in name}  # of tensors with named dims
    ours = {name for _, name in ACCELERATOR.rows()} - MORE
    assert ours == cast | LATER


def test_one_operator_in_two_lists_is_an_error() -> None:
    with pytest.raises(PluginError, match="`mm` twice"):
        AutocastRules(lower=frozenset(("mm",)), float32=frozenset(("mm",)))
