"""Train a small GPT on the source code of Python's own standard library, byte by byte.

    python train_gpt.py                  # on the device "pjrt"
    python train_gpt.py --device cpu     # the same, to compare

It ends by writing some Python of its own.
"""

import argparse
import itertools
import math
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

LENGTH = 128  # bytes that the model sees at once
BATCH = 8
PROMPT = "class Model:\n    def __init__(self"


class Attention(nn.Module):
    """Each byte looks at itself and at those before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        per_head = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(per_head).transpose(1, 2) for part in self.inputs(x).split(width, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm_attention = nn.LayerNorm(width)
        self.norm_mlp = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_mlp(x)))))


class GPT(nn.Module):
    def __init__(
        self, layers: int, width: int, heads: int, length: int, vocabulary: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("bias", "output.weight", "down.weight")):
                nn.init.zeros_(parameter)  # so that at first a block passes on what it gets
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(position)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_model(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(layers=4, width=128, heads=4, length=LENGTH, vocabulary=256, dropout=dropout)


def read_text() -> tuple[Tensor, Tensor]:
    """The standard library's modules as bytes: most to train on, one in twenty to validate."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))

    def read(some: list[Path]) -> Tensor:
        text = b"".join(file.read_bytes() for file in some)
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)

    return read([file for i, file in enumerate(files) if i % 20]), read(files[::20])


def make_batches(text: Tensor, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows from random positions, without end, and the byte that follows each of their bytes."""
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(LENGTH + 1)
    while True:
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=generator)
        batch = text[starts + window].long()
        yield batch[:, :-1], batch[:, 1:]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor], device: str) -> Tensor:
    tokens, targets = (part.to(device) for part in batch)
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def train(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    steps: int,
    device: str,
    learning_rate: float = 4e-3,
) -> Iterator[Tensor]:
    """Take a step for each loss that is asked for. Losses stay on the device until read."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.1)

    def warm_up_then_cosine(step: int) -> float:
        return min((step + 1) / 50, 0.5 * (1 + math.cos(math.pi * step / steps)))

    schedule = LambdaLR(optimizer, warm_up_then_cosine)
    for batch in itertools.islice(batches, steps):
        model.train()
        optimizer.zero_grad()
        loss = loss_of(model, batch, device)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.detach()


@torch.no_grad()
def validate(model: nn.Module, text: Tensor, device: str, batches: int = 8) -> float:
    """The mean loss, in nats per byte, on the same windows every time."""
    model.eval()
    some = itertools.islice(make_batches(text), batches)
    return sum(loss_of(model, batch, device).item() for batch in some) / batches


@torch.no_grad()
def sample(
    model: nn.Module, prompt: str, n_bytes: int, device: str, temperature: float = 0.7
) -> str:
    """`prompt` and what the model writes after it: a window of fixed length rolls on by a byte."""
    model.eval()
    written = list(prompt.encode())
    window = torch.tensor([list(prompt.encode().rjust(LENGTH, b"\n"))], device=device)
    for _ in range(n_bytes):
        likely = (model(window)[:, -1] / temperature).softmax(dim=-1)
        following = torch.multinomial(likely, num_samples=1)
        window = torch.cat([window[:, 1:], following], dim=1)
        written.append(int(following.item()))
    return bytes(written).decode(errors="replace")


def programs_compiled(device: str) -> int | str:
    """How many programs the device has compiled so far, where it counts them."""
    count = getattr(getattr(torch, device, None), "programs_compiled", None)
    return count() if count else "n/a"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    parser.add_argument("--device", default="pjrt")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    device, steps = arguments.device, arguments.steps

    training, validation = read_text()
    model = build_model().to(device)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{n_parameters / 1e6:.1f}M parameters, {len(training) / 1e6:.1f} MB text, on {device}")

    start = time.perf_counter()
    with tqdm(total=steps, desc="training", unit="step") as progress:
        for step, loss in enumerate(train(model, make_batches(training), steps, device), start=1):
            progress.update()
            if step % 10 == 0:
                rate = step * BATCH * LENGTH / (time.perf_counter() - start)
                compiled = programs_compiled(device)
                progress.set_postfix_str(
                    f"loss {loss.item():.3f}, {rate:,.0f} tokens/s, {compiled} programs compiled"
                )
            if step % 250 == 0 or step == steps:
                on_unseen = validate(model, validation, device)
                progress.write(f"step {step}: {on_unseen:.3f} nats a byte on unseen modules")
    print(f"\n{sample(model, PROMPT, 400, device)}")


if __name__ == "__main__":
    main()
