"""Models of Transformers ask whether a mask leaves anything out, and get PyTorch's answer without a read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from small import Costs
from torch_pjrt_ecosystem.for_transformers.masks import is_all_ones

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
T5: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
MODELS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "Mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**GROUPED, sliding_window=4)
    ),
    "Qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED, head_dim=8)),
    "GPT2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=64)
    ),
    "Bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
    "T5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
}


def masks() -> dict[str, torch.Tensor]:
    """Twelve tokens of three sequences: all, without the last four of one, without its first three."""
    ones, right, left = (torch.ones(3, 12, dtype=torch.long) for _ in range(3))
    right[0, 8:] = 0
    left[0, :3] = 0
    return {"ones": ones, "right": right, "left": left}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", MODELS)
def test_a_forward_is_the_cpus_and_reads_nothing(name: str) -> None:
    torch.manual_seed(0)
    net = MODELS[name]().eval()
    ids = torch.randint(1, 64, (3, 12))
    for mask in masks().values():
        with torch.no_grad():
            wanted = net.cpu()(input_ids=ids, labels=ids, attention_mask=mask)
            net.to("pjrt")
            there = {"input_ids": ids.to("pjrt"), "attention_mask": mask.to("pjrt")}
            costs = Costs()
            costs.mark()
            found = net(**there, labels=there["input_ids"])
            costs.mark()

        assert costs.steps == [(0, 0, 0)] and costs.fallbacks == 0
        torch.testing.assert_close(found.loss.cpu(), wanted.loss, rtol=1e-5, atol=1e-6)
        seen = mask.bool()
        torch.testing.assert_close(
            found.logits.cpu()[seen], wanted.logits[seen], rtol=1e-5, atol=5e-6
        )


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", ["Llama", "Bert"])
def test_a_forward_in_inference_mode_is_the_cpus_and_reads_nothing(name: str) -> None:
    torch.manual_seed(0)
    net = MODELS[name]().eval()
    ids, mask = torch.randint(1, 64, (3, 12)), masks()["right"]
    with torch.inference_mode():
        wanted = net(input_ids=ids, attention_mask=mask).logits
        net.to("pjrt")
        there = {"input_ids": ids.to("pjrt"), "attention_mask": mask.to("pjrt")}
        costs = Costs()
        costs.mark()
        found = net(**there).logits
        costs.mark()

    assert costs.steps == [(0, 0, 0)] and costs.fallbacks == 0
    assert found.is_inference()
    seen = mask.bool()
    torch.testing.assert_close(found.cpu()[seen], wanted[seen], rtol=1e-5, atol=5e-6)


@pytest.mark.slow
def test_a_model_with_a_mask_is_one_graph() -> None:
    torch.manual_seed(0)
    net = MODELS["Llama"]().eval().to("pjrt")
    ids, mask = torch.randint(1, 64, (3, 12)).to("pjrt"), masks()["right"].to("pjrt")

    compiled = torch.compile(net, backend="pjrt", fullgraph=True)

    with torch.no_grad():
        found, wanted = compiled(input_ids=ids, attention_mask=mask).logits, net(ids, mask).logits
    torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("values", [[1, 1], [0, 1], [0, 0], [2, 3], [-1, -2], [-1, 0], [-1, 1]])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32])
@pytest.mark.parametrize("how", ["whole", "view", "written"])
def test_what_is_known_is_true(values: list[int], dtype: torch.dtype, how: str) -> None:
    mask = torch.tensor(values, dtype=dtype).to("pjrt")
    if how == "view":
        mask = mask[1:]
    if how == "written":
        mask[0] = 0
    costs = Costs()
    costs.mark()
    known = is_all_ones(mask)
    costs.mark()

    assert costs.steps == [(0, 0, 0)]
    assert known in (None, bool(mask.cpu().bool().all()))
    if how == "whole" and dtype == torch.int64 and values != [-1, 1]:
        assert known is not None


@pytest.mark.parametrize("values", [[1, 1, 1], [0, 1, 1], [2, 1, 1], [2, 2, 2], [0, 0, 0]])
@pytest.mark.parametrize("how", ["host", "view", "made"])
def test_masks_of_models_with_states_are_the_cpus(values: list[int], how: str) -> None:
    from transformers.masking_utils import create_recurrent_attention_mask

    found, costs = [], Costs()
    for device in ("cpu", "pjrt"):
        mask = torch.tensor([values, [1, 1, 1]]).to(device)
        if how == "made":
            mask = torch.ones(2, 3, dtype=torch.long, device=device)
        embeddings = torch.zeros(2, 3, 8, device=device)
        costs.mark()
        given: Any = mask[:, :3] if how == "view" else mask
        found.append(create_recurrent_attention_mask(None, embeddings, given))  # type: ignore[arg-type]
        costs.mark()

    assert costs.steps[2] == (0, 0, 0)
    assert (found[0] is None) == (found[1] is None)
    assert found[0] is None or torch.equal(found[0], found[1].cpu())


def test_nothing_is_known_of_a_tensor_of_the_cpu() -> None:
    assert is_all_ones(torch.ones(2, dtype=torch.long)) is None
    assert is_all_ones(None) is None


def test_a_mask_that_was_written_to_is_looked_at() -> None:
    from transformers import masking_utils

    config = MODELS["Llama"]().config
    embeddings = torch.zeros(3, 12, 32, device="pjrt")
    ones = masks()["ones"].to("pjrt")
    mask: Any = masking_utils._preprocess_mask_arguments(
        config, embeddings, ones, None, None, None
    )[1]
    assert masking_utils.fast_all(mask) is True

    mask[0, 0] = False

    assert not masking_utils.fast_all(mask)
