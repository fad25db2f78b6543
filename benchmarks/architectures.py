"""Architectures of Transformers on `pjrt` beside the CPU, lazily and compiled, as a table in Markdown.

    python benchmarks/architectures.py [--only NAME ...] [--out FILE]

Tiny random models, made of their configurations. Of each: a forward, and three training steps (AdamW), lazily
and by `torch.compile(backend="pjrt")` of the model. Columns: how far the logits and the third loss are from
the CPU's; programs and reads of the third step; graphs of the compiled model; calls that ran on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("USE_TORCH_XLA", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "packages/ecosystem/tests/helpers"))

import text_models
from text_models import BART, SIZES

IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}

# Of Transformers' classes, those of the small models of our tests that are named here.
TEXT = (
    *("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM"),
    *("Qwen3ForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"),
    *("PhiForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM"),
    *("GPTJForCausalLM", "OPTForCausalLM", "BloomForCausalLM", "FalconForCausalLM"),
    *("OlmoForCausalLM", "StableLmForCausalLM", "Starcoder2ForCausalLM", "CohereForCausalLM"),
    *("GraniteForCausalLM", "MambaForCausalLM", "T5ForConditionalGeneration"),
    "BartForConditionalGeneration",
)
# class -> (configuration, what it is made of, what goes in)
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    **{name: (*text_models.MODELS[name], "text") for name in TEXT},
    **{name: (*made_of, "text") for name, made_of in text_models.EXPERTS.items()},
    "BertForMaskedLM": ("BertConfig", SIZES, "text"),
    "RobertaForMaskedLM": ("RobertaConfig", SIZES, "text"),
    "DistilBertForMaskedLM": (
        "DistilBertConfig",
        {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        "text",
    ),
    "ElectraForMaskedLM": ("ElectraConfig", {**SIZES, "embedding_size": 32}, "text"),
    "DebertaV2ForMaskedLM": ("DebertaV2Config", SIZES, "text"),
    "ModernBertForMaskedLM": ("ModernBertConfig", SIZES, "text"),
    "ViTForImageClassification": ("ViTConfig", IMAGE, "image"),
    "DeiTForImageClassification": ("DeiTConfig", IMAGE, "image"),
    "ConvNextForImageClassification": (
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        "image",
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {**BART, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32},
        "sound",
    ),
}
HEAD = (
    "| model | logits | loss | programs, reads a step | compiled: logits | loss | graphs "
    "| programs, reads a step | fallbacks |"
)


def made(name: str) -> Any:
    """The same parameters each time, without dropout."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    configuration, given, _ = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, configuration)(**given)).eval()
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return model


def batch(kind: str) -> dict[str, Any]:
    """What goes in, with labels, on the CPU."""
    import torch

    generator = torch.Generator().manual_seed(1)
    if kind == "image":
        images = torch.randn(2, 3, 32, 32, generator=generator)
        return {"pixel_values": images, "labels": torch.tensor([0, 1])}
    ids = torch.randint(3, 64, (2, 12), generator=generator)
    if kind == "sound":
        return {"input_features": torch.randn(2, 8, 32, generator=generator), "labels": ids}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def trained(name: str, device: str, compiled: bool = False) -> dict[str, Any]:
    """Logits of a forward, losses of three steps, and what the third cost."""
    import torch

    from torch_pjrt.extend import counters

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    fallbacks = sum(counters.fallbacks.values())
    model = made(name).to(device)
    run = torch.compile(model, backend="pjrt") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    given = batch(MODELS[name][2])
    losses, cost = [], (0, 0)
    with torch.no_grad():
        logits = run(**{k: v.to(device) for k, v in given.items()}).logits.cpu()
    for _ in range(3):
        begin = counters.programs_run, counters.downloads
        loss = run(**{k: v.to(device) for k, v in given.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        cost = counters.programs_run - begin[0], counters.downloads - begin[1]
        losses.append(loss.detach())
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {
        "logits": logits,
        "losses": [x.item() for x in losses],
        "cost": cost,
        "graphs": graphs,
        "fallbacks": sum(counters.fallbacks.values()) - fallbacks,
    }


def measured(name: str) -> str:
    """Its line of the table, in this process."""
    expected, lazily = trained(name, "cpu"), trained(name, "pjrt")
    compiled = trained(name, "pjrt", compiled=True)

    def far(found: dict[str, Any]) -> str:
        scale = expected["logits"].abs().max().clamp(min=1)
        logits = ((found["logits"] - expected["logits"]).abs().max() / scale).item()
        loss = abs(found["losses"][-1] - expected["losses"][-1]) / abs(expected["losses"][-1])
        return f"{logits:.0e} | {loss:.0e}"

    def cost(found: dict[str, Any]) -> str:
        return "{}, {}".format(*found["cost"])

    return (
        f"| {name} | {far(lazily)} | {cost(lazily)} | {far(compiled)} | {compiled['graphs']} "
        f"| {cost(compiled)} | {lazily['fallbacks'] + compiled['fallbacks']} |"
    )


def main() -> None:
    """One after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [HEAD, "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for name in options.only:
        try:
            lines.append(measured(name))
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            lines.append(f"| {name} | fails: {said} | | | | | | | |")
        print(lines[-1], flush=True)
        if options.out:
            options.out.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
