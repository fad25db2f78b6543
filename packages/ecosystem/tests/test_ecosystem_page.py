"""The code of the page `docs/ecosystem.md` runs, and trains on `pjrt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

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


class Stepping(pl.LightningModule):
    """What Lightning's `Trainer` takes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


GIVEN: dict[str, dict[str, Any]] = {
    "transformers": {"model": Labelled(), "dataset": [{"x": x, "labels": y} for x, y in rows()]},
    "lightning": {"model": Stepping(), "loader": torch.utils.data.DataLoader(rows(), 4)},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("library", GIVEN)
def test_block_trains_on_the_device(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = [block for block in BLOCKS if library in block.text]
    names = dict(GIVEN[library])
    before = {k: v.clone() for k, v in names["model"].state_dict().items()}
    programs = counters.programs_run
    monkeypatch.chdir(tmp_path)

    exec(compile(block.text, f"{PAGE}:{block.number}", "exec"), names)

    after = names["model"].state_dict()
    assert not any(torch.equal(before[k], after[k].cpu()) for k in before)
    assert counters.programs_run > programs


def test_each_block_is_run_here() -> None:
    assert len(BLOCKS) == len(GIVEN)
