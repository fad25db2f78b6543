"""Where nobody names a device, pipelines and `device_map="auto"` use `pjrt`, and none leaves it unsaid."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Pipeline

from torch_pjrt_ecosystem.placement import LeavesDevice

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    ).eval()


class Scores(Pipeline):
    """Gives what the model gives for three tokens."""

    def _sanitize_parameters(self, **given: Any) -> Any:
        return {}, {}, {}

    def preprocess(self, input_: Any, **given: Any) -> Any:
        return {"input_ids": torch.tensor([[1, 2, 3]])}

    def _forward(self, input_tensors: Any, **given: Any) -> Any:
        return self.model(**input_tensors)

    def postprocess(self, model_outputs: Any, **given: Any) -> Any:
        return model_outputs.logits


@pytest.mark.parametrize("start", ["cpu", "pjrt"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "pjrt"),
        ({"device": 0}, "pjrt"),
        ({"device": -1}, None),  # Transformers: wherever the model is
        ({"device": "cpu"}, "cpu"),
        ({"device": torch.device("cpu")}, "cpu"),
        ({"device": "pjrt"}, "pjrt"),
        ({"device": "pjrt:0"}, "pjrt"),
    ],
)
def test_a_pipeline_runs_where_it_is_told_else_on_the_device(
    given: dict[str, Any], expected: str | None, start: str
) -> None:
    net = model().to(start)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = Scores(model=net, **given)

    expected = expected or start
    leaves = start == "pjrt" and expected == "cpu"
    assert made.device.type == net.device.type == expected
    assert any(w.category is LeavesDevice for w in said) == leaves
    torch.testing.assert_close(
        made("x"), model()(torch.tensor([[1, 2, 3]])).logits, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("how", ["auto", "balanced", "balanced_low_0", "sequential"])
def test_a_model_that_is_loaded_by_a_map_is_on_the_device(tmp_path: Path, how: str) -> None:
    model().save_pretrained(tmp_path)

    loaded = LlamaForCausalLM.from_pretrained(tmp_path, device_map=how)

    assert {p.device.type for p in loaded.parameters()} == {"pjrt"}
    assert Scores(model=loaded).device.type == "pjrt"


def test_accelerate_makes_its_map_of_the_devices_memory() -> None:
    from accelerate.utils import get_max_memory

    net = model()
    n_bytes = sum(p.numel() * p.element_size() for p in net.parameters())

    assert accelerate.infer_auto_device_map(net) == {"": 0}
    assert torch.device(0) == torch.device("pjrt", 0)
    limits = {0: f"{n_bytes // 2}KB", "cpu": "1GB"}
    assert list(get_max_memory(limits)) == [0, "cpu"]  # type: ignore[arg-type]
    assert limits == {0: n_bytes // 2 * 1000, "cpu": 10**9}
    assert set(accelerate.infer_auto_device_map(net, {0: n_bytes // 2, "cpu": 10**9}).values()) == {
        0,
        "cpu",
    }
