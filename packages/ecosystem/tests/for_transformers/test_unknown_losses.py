"""A compiled model whose class has no loss of its own is one graph, and its loss is the CPU's."""

from __future__ import annotations

import pytest
import torch

import text_models

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_gpt2_with_labels_is_one_graph() -> None:
    torch._dynamo.reset()
    net = text_models.model("GPT2LMHeadModel")
    given = text_models.prompt(8, rows=2)
    given["labels"] = given["input_ids"]
    assert net.loss_type is None
    expected = net(**given).loss

    net = net.to("pjrt")
    run = torch.compile(net, backend="pjrt", fullgraph=True)
    found = run(**{name: x.to("pjrt") for name, x in given.items()}).loss

    torch.testing.assert_close(found.cpu(), expected)
