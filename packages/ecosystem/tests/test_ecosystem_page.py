"""The code of the page `docs/ecosystem.md` runs, and trains on `pjrt`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import doc_pages
from small import model, rows
from torch_pjrt.extend import counters

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",  # Lightning's advice
)
PAGE = doc_pages.ROOT / "docs" / "ecosystem.md"
BLOCKS = [block for block in doc_pages.blocks(PAGE) if block.info.startswith("python")]


class Labelled(nn.Module):
    """What Transformers' `Trainer` takes: the loss is in what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.net(x).float(), labels)}


class Tokens(nn.Module):
    """What takes tokens, a mask and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {
            "loss": nn.functional.cross_entropy(self.net(input_ids).flatten(0, 1), labels.flatten())
        }


class Stepping(pl.LightningModule):
    """What Lightning's `Trainer` takes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "transformers": lambda: {
        "model": Labelled(),
        "dataset": [{"x": x, "labels": y} for x, y in rows()],
    },
    "PadToBuckets": lambda: {
        "Trainer": Trainer,
        "arguments": TrainingArguments("runs", max_steps=1, report_to=[]),
        "tokenizer": SimpleNamespace(pad_token_id=1),
        "model": Tokens(),
        "dataset": [{"input_ids": [2, 3, 4], "labels": [2, 3, 4]} for _ in range(8)],
    },
    "lightning": lambda: {"model": Stepping(), "loader": torch.utils.data.DataLoader(rows(), 4)},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("library", GIVEN)
def test_block_trains_on_the_device(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = [block for block in BLOCKS if library in block.text]
    names = GIVEN[library]()
    before = {k: v.clone() for k, v in names["model"].state_dict().items()}
    programs = counters.programs_run
    monkeypatch.chdir(tmp_path)

    exec(compile(block.text, f"{PAGE}:{block.number}", "exec"), names)

    after = names["model"].state_dict()
    assert not any(torch.equal(before[k], after[k].cpu()) for k in before)
    assert counters.programs_run > programs


def test_each_block_is_run_here() -> None:
    assert len(BLOCKS) == len(GIVEN)
