"""What attention and encoder layers call in evaluation stays on the device, and gives what the CPU gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt

PADDED = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
NOWHERE = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
CAUSAL = torch.ones(5, 5).triu(1).bool()

MASKS: list[dict[str, Any]] = [
    {},
    {"src_key_padding_mask": PADDED},
    {"src_mask": CAUSAL},
    {"src_mask": CAUSAL, "src_key_padding_mask": PADDED},
]

LAYERS: list[dict[str, Any]] = [{}, {"norm_first": True}, {"activation": "gelu"}]


def without_gradients(module: nn.Module, args: tuple[Any, ...], masks: dict[str, Any]) -> list[Any]:
    """What the module gives on CPU, and on the device."""
    results = []
    for device in ("cpu", "pjrt"):
        there = copy.deepcopy(module).eval().to(device)
        given = [x.to(device) for x in args]
        with torch.no_grad():
            results.append(there(*given, **{k: v.to(device) for k, v in masks.items()}))
    return results


def fallbacks() -> dict[str, int]:
    return dict(torch_pjrt.report().as_dict()["fallbacks"])


@pytest.mark.slow("rows")
@pytest.mark.parametrize("masks", MASKS, ids=lambda m: " ".join(m) or "no mask")
@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_layer_gives_what_it_gives_on_cpu(options: dict[str, Any], masks: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    before = fallbacks()

    expected, ours = without_gradients(layer, (torch.randn(2, 5, 8),), masks)

    torch.testing.assert_close(ours.cpu(), expected)
    assert fallbacks() == before


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(
    "masks",
    [{}, {"key_padding_mask": PADDED}, {"key_padding_mask": NOWHERE}, {"attn_mask": CAUSAL}],
    ids=["no mask", "padded", "nowhere to look", "causal"],
)
def test_attention_gives_output_and_weights_of_the_cpu(
    masks: dict[str, Any], average: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    before = fallbacks()

    expected, ours = without_gradients(attention, (x, x, x), masks)

    torch.testing.assert_close([t.cpu() for t in ours], list(expected), equal_nan=True)
    assert fallbacks() == before


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
def test_encoder_of_a_padded_batch_gives_what_the_cpu_gives_where_nothing_is_padded() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)

    masks = {"src_key_padding_mask": PADDED}
    expected, ours = without_gradients(encoder, (torch.randn(2, 5, 8),), masks)

    torch.testing.assert_close(ours.cpu()[~PADDED], expected[~PADDED])
