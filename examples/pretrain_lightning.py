"""Train a small transformer with Lightning, from random weights, on sequences that count by some step.

    python pretrain_lightning.py                        # on the accelerator at hand, which is `pjrt`
    python pretrain_lightning.py --device cpu           # the same, to compare
    torchrun --nproc-per-node 2 pretrain_lightning.py   # in two processes

Wants `torch-pjrt-ecosystem[lightning]`, and `[processes]` for torchrun.
"""

import argparse

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

WORDS = 32
LENGTH = 16


class Counter(pl.LightningModule):
    """Predicts each next word; `Trainer` does the rest."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(WORDS, 64)
        self.places = nn.Embedding(LENGTH, 64)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=words.device)
        x = self.words(words) + self.places.weight[:length]
        return self.head(self.layers(x, mask=mask, is_causal=True))

    def training_step(self, words: Tensor, index: int) -> Tensor:
        logits = self(words[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def sequences(n: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(WORDS, (n, 1), generator=generator)
    steps = torch.randint(1, 4, (n, 1), generator=generator)
    return (starts + steps * torch.arange(LENGTH)) % WORDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["auto", "pjrt", "cpu"], default="auto")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    module = Counter()
    trainer = pl.Trainer(
        accelerator=options.device,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=True,
    )
    loader = DataLoader(sequences(512), batch_size=32)  # type: ignore[arg-type]
    trainer.fit(module, loader)
    if trainer.is_global_zero:
        device = trainer.strategy.root_device.type
        print(f"on {device}; last loss {trainer.callback_metrics['loss'].item():.4f}")


if __name__ == "__main__":
    main()
