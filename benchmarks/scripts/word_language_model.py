"""A recurrent language model as it is mostly written: its state goes on from stretch to stretch of the text.

    python benchmarks/scripts/word_language_model.py --device cpu

The text is random with a structure that can be learned; the last stretch of an epoch is shorter.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

WORDS, WIDTH, LAYERS, STRETCH = 40, 64, 2, 20
State = tuple[torch.Tensor, torch.Tensor]


class Model(nn.Module):
    """Words to logits of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=0.1)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """`x` is [time, batch]; the logits are [time * batch, words]."""
        output, state = self.rnn(self.drop(self.encoder(x)), state)
        return self.decoder(self.drop(output)).view(-1, WORDS), state

    def first(self, batch: int) -> State:
        """The state before the text."""
        weight = next(self.parameters())
        zeros = weight.new_zeros(LAYERS, batch, WIDTH)
        return zeros, zeros.clone()


def text(n: int, columns: int, seed: int, device: str) -> torch.Tensor:
    """Words [time, batch]: each follows from the one before, most of the time."""
    generator = torch.Generator().manual_seed(seed)
    words = [torch.randint(WORDS, (columns,), generator=generator)]
    for _ in range(n - 1):
        is_free = torch.rand(columns, generator=generator) < 0.2
        drawn = torch.randint(WORDS, (columns,), generator=generator)
        words.append(torch.where(is_free, drawn, (words[-1] * 7 + 3) % WORDS))
    return torch.stack(words).to(device)


def stretch(source: torch.Tensor, begin: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some words, and those that follow them."""
    n = min(STRETCH, len(source) - 1 - begin)
    return source[begin : begin + n], source[begin + 1 : begin + 1 + n].view(-1)


def train(model: Model, source: torch.Tensor, rate: float) -> float:
    """One epoch, with plain descent written out; the last mean loss."""
    model.train()
    total, mean = 0.0, 0.0
    state = model.first(source.size(1))
    for i, begin in enumerate(range(0, source.size(0) - 1, STRETCH), 1):
        x, y = stretch(source, begin)
        model.zero_grad()
        state = (state[0].detach(), state[1].detach())
        output, state = model(x, state)
        loss = nn.functional.cross_entropy(output, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            assert p.grad is not None
            p.data.add_(p.grad, alpha=-rate)
        total += loss.item()
        if i % 5 == 0:
            mean, total = total / 5, 0.0
    return mean


def evaluate(model: Model, source: torch.Tensor) -> float:
    """The mean loss of a word."""
    model.eval()
    total = 0.0
    state = model.first(source.size(1))
    with torch.no_grad():
        for begin in range(0, source.size(0) - 1, STRETCH):
            x, y = stretch(source, begin)
            output, state = model(x, state)
            total += len(x) * nn.functional.cross_entropy(output, y).item()
    return total / (len(source) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="pjrt")
    device = parser.parse_args().device
    torch.manual_seed(0)
    model = Model().to(device)
    training, testing = text(312, 16, 1, device), text(112, 10, 2, device)
    best, rate = None, 10.0
    for epoch in range(3):
        train(model, training, rate)
        loss = evaluate(model, testing)
        print(f"epoch {epoch}: {loss:.3f}")
        if best is None or loss < best:
            best = loss
        else:
            rate /= 4
    print(f"{evaluate(model, testing):.3f}")


if __name__ == "__main__":
    main()
