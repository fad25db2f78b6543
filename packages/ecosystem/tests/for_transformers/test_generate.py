"""`generate` gives the CPU's tokens, by one program a token, and compiles nothing for another length."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

from small import Costs
from text_models import MODELS, model, prompt
from torch_pjrt_ecosystem.for_transformers import generating

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def on_device(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x.to("pjrt") for name, x in given.items()}


def generated(net: Any, given: dict[str, torch.Tensor], **how: Any) -> Any:
    """With the same numbers drawn on the host each time."""
    torch.manual_seed(7)
    return net.generate(**given, **{"max_length": 30, "do_sample": False, **how})


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_the_cpus_for_prompts_of_any_length(name: str) -> None:
    on_cpu = model(name)
    net = copy.deepcopy(on_cpu).to("pjrt")
    is_static = on_cpu._can_compile_fullgraph
    for n, pads in [(20, 0), (9, 0), (22, 2), (11, 3), (5, 0), (27, 0), (24, 1)]:
        given = prompt(n, rows=2, pads=pads)
        wanted = generated(on_cpu, given)
        costs = Costs()
        costs.mark()
        found = generated(net, on_device(given))
        costs.mark()

        assert torch.equal(found.cpu(), wanted) and found.device.type == "pjrt"
        assert costs.fallbacks == 0
        if is_static and n in (27, 24):
            n_tokens = wanted.shape[1] - (1 if on_cpu.config.is_encoder_decoder else n)
            assert costs.steps[0][1] <= n_tokens + 1 and costs.steps[0][2] == 0


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"do_sample": True, "top_k": 10, "temperature": 1.3},
        {"num_beams": 3},
        {"do_sample": True, "top_p": 0.9, "num_return_sequences": 2},
        {"do_sample": True, "num_beams": 2},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
        {"cache_implementation": "static"},
        {"eos_token_id": [9, 12]},
    ],
    ids=["greedy", "sampled", "beams", "several", "sampled-beams", "penalty", "static", "end"],
)
def test_each_token_is_one_program_and_one_read(how: dict[str, Any]) -> None:
    on_cpu = model("LlamaForCausalLM")
    net = copy.deepcopy(on_cpu).to("pjrt")
    for n in (12, 9, 14):
        given = prompt(n, rows=2)
        wanted = generated(on_cpu, given, **how)
        there = on_device(given)
        costs = Costs()
        costs.mark()
        found = generated(net, there, **how)
        costs.mark()

        assert torch.equal(found.cpu(), wanted)
        [(reads, programs, compiled)] = costs.steps
        n_steps = programs if "num_beams" in how else wanted.shape[1] - n
        assert (reads, programs) == (n_steps + 2, n_steps)  # tokens and mask, and the logits
        assert compiled == (0 if n != 12 else compiled)


def test_the_cache_keeps_the_size_of_the_longest_call() -> None:
    net = model("LlamaForCausalLM").to("pjrt")
    generated(net, on_device(prompt(40)), max_length=60)
    generated(net, on_device(prompt(10)), max_length=60)
    costs = Costs()
    costs.mark()
    for n, most in [(3, 9), (12, 20), (16, 33), (33, 50)]:
        generated(net, on_device(prompt(n)), max_length=most)
    costs.mark()

    assert costs.steps[0][2] == 0


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_is_found_under_each_name_that_transformers_has_had(name: str) -> None:
    cache = object()

    assert generating._cache_of({name: cache}) is cache
    assert generating._cache_of({name: None}) is None


@pytest.mark.slow
def test_a_window_slides_over_a_prompt_that_was_filled_up() -> None:
    on_cpu = model("MistralForCausalLM")  # it sees eight tokens
    net = copy.deepcopy(on_cpu).to("pjrt")
    for n in (3, 7, 8, 9, 17):
        given = prompt(n)
        wanted = on_cpu.generate(
            **given,
            max_length=30,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        found = net.generate(
            **on_device(given),
            max_length=30,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )

        assert torch.equal(found.sequences.cpu(), wanted.sequences)
        for mine, its in zip(found.logits, wanted.logits, strict=True):
            torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-4)


def test_what_is_returned_beside_tokens_is_the_cpus() -> None:
    on_cpu = model("LlamaForCausalLM")
    net = copy.deepcopy(on_cpu).to("pjrt")
    how: dict[str, Any] = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_hidden_states": True,
    }
    wanted, found = (generated(net, prompt(9), **how) for net in (on_cpu, net))

    assert found.sequences.device.type == "cpu"  # the prompt was
    torch.testing.assert_close(found.scores, wanted.scores, rtol=1e-4, atol=1e-5)
    for mine, its in zip(found.hidden_states, wanted.hidden_states, strict=True):
        for a, b in zip(mine, its, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_conversation_goes_on_with_the_cache_that_came_back() -> None:
    on_cpu = model("LlamaForCausalLM")
    net = copy.deepcopy(on_cpu).to("pjrt")
    answers = []
    for one in (on_cpu, net):
        cache = transformers.DynamicCache(config=one.config)
        first = prompt(6)["input_ids"].to(one.device)
        said = one.generate(first, past_key_values=cache, max_new_tokens=4, do_sample=False)
        asked = torch.cat([said, prompt(5)["input_ids"].to(one.device)], dim=1)
        answers.append(
            one.generate(asked, past_key_values=cache, max_new_tokens=4, do_sample=False).cpu()
        )

    assert torch.equal(*answers)


def test_tokens_stream_as_on_the_cpu() -> None:
    class Kept(transformers.generation.streamers.BaseStreamer):
        def __init__(self) -> None:
            self.tokens: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.tokens.append(-1)

    on_cpu = model("LlamaForCausalLM")
    net = copy.deepcopy(on_cpu).to("pjrt")
    streams = [Kept(), Kept()]
    generated(on_cpu, prompt(5), streamer=streams[0])
    generated(net, on_device(prompt(5)), streamer=streams[1])

    assert streams[0].tokens == streams[1].tokens


@pytest.mark.slow
def test_batches_with_pages_give_the_cpus_tokens() -> None:
    """Which rows are together, and so the sizes, are as the queue has it: each size is compiled."""
    on_cpu = model("LlamaForCausalLM")
    net = copy.deepcopy(on_cpu).to("pjrt")
    prompts = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15], [3, 4]]
    greedy = transformers.GenerationConfig(
        max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=1
    )
    pages = transformers.ContinuousBatchingConfig(page_size=32, num_blocks=16, max_batch_tokens=64)
    wanted = [
        generated(on_cpu, {"input_ids": torch.tensor([p])}, max_length=len(p) + 6)[0, len(p) :]
        for p in prompts
    ]

    found = net.generate_batch(
        inputs=prompts, generation_config=greedy, continuous_batching_config=pages
    )

    assert [answer.generated_tokens for answer in found.values()] == [w.tolist() for w in wanted]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("how", [{"prompt_lookup_num_tokens": 3}, {"assistant": True}], ids=str)
def test_assisted_decoding_gives_the_cpus_tokens(how: dict[str, Any]) -> None:
    """It compiles for each length: its candidates are on the device."""
    on_cpu = model("LlamaForCausalLM")
    net = copy.deepcopy(on_cpu).to("pjrt")
    given = prompt(6)
    found = []
    for one in (on_cpu, net):
        asked = {"assistant_model": copy.deepcopy(one)} if "assistant" in how else how
        there = {name: x.to(one.device) for name, x in given.items()}
        found.append(generated(one, there, max_length=12, **asked).cpu())

    assert torch.equal(*found)
