"""Llama-, ViT- and ResNet-shaped models with weights of few bits: quality, bytes, times, what is read of HBM.

    python benchmarks/quant_models.py [--steps 300] [--parts quality times ahead] [--inductor]
        > benchmarks/results/quant-models.md

quality    small models, trained: Llama on the characters of docs/, ViT and ResNet on scikit-learn's digits.
times      larger ones, of random weights: one token after a cache of some (Llama), and batches. Medians of
           calls in turns, beside PyTorch on the CPU, eager (and by Inductor), with torchao's layers, too.
ahead      Llama's token in bfloat16, compiled for a v5e and an H100 (libtpu, JAX's CUDA plugin).

Needs torchao, and scikit-learn. Convolutions are PT2E's, of which a program takes the batch of its example.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hbm_reads import hbm_reads
from quant_pt2e import Bottleneck, Encoder, compiled, in_turns, resnet, small, vit
from torch import Tensor, nn

import torch_pjrt
from torch_pjrt_quant import Float8, Int4, Int8, Nf4, gptq_, quantize_

F = torch.nn.functional
LENGTH, BATCH = 64, 32  # of texts; of images, too

CONFIGS: dict[str, Any] = {
    "int8": Int8(),
    "int8 dynamic": Int8(dynamic=True),
    "int4, groups of 128": Int4(128),
    "int4 symmetric, groups of 128": Int4(128, symmetric=True),
    "nf4, groups of 64": Nf4(64),
    "float8": Float8(),
}
#   torchao's configurations
THEIRS = {
    "int8": "Int8WeightOnlyConfig",
    "int8 dynamic": "Int8DynamicActivationInt8WeightConfig",
}


def rotated(x: Tensor, first: int) -> Tensor:
    """Queries or keys (batch, heads, length, width), turned by their positions from `first` on."""
    half = x.shape[-1] // 2
    places = torch.arange(first, first + x.shape[2], device=x.device, dtype=torch.float32)
    rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = places[:, None] * rates
    cos, sin = (f(angles).to(x.dtype) for f in (torch.cos, torch.sin))
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Layer(nn.Module):
    """A layer of Llama's. With a cache, queries see it and themselves; without, what is before them."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, hidden: int, heads: int, cached: int) -> None:
        super().__init__()
        self.heads, self.cached = heads, cached
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        for name in ("keys", "values"):
            shape = 1, heads, cached, width // heads
            self.register_buffer(name, torch.randn(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before(x)
        q, k, v = (
            part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = rotated(q, self.cached), rotated(k, self.cached)
        if self.cached:
            k, v = (
                torch.cat([old.expand(len(x), -1, -1, -1), new], 2)
                for old, new in ((self.keys, k), (self.values, v))
            )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=not self.cached)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    def __init__(
        self, words: int, width: int, hidden: int, heads: int, layers: int, cached: int = 0
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        made = (Layer(width, hidden, heads, cached) for _ in range(layers))
        self.layers = nn.Sequential(*made)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.words(tokens))))


class SmallVit(nn.Module):
    """Digits of 8 x 8 in patches of 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 128, 2, stride=2)
        self.places = nn.Parameter(torch.randn(16, 128) / 10)
        self.layers = nn.Sequential(Encoder(128, 4), Encoder(128, 4))
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(x).mean(1))


class SmallResnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()]
        self.parts = nn.Sequential(*stem, *(Bottleneck(64) for _ in range(3)))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.parts(x).mean((2, 3)))


def stored(model: nn.Module) -> int:
    return sum(t.nbytes for t in model.state_dict().values())


def trained(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], steps: int) -> nn.Module:
    model.to("pjrt").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _, (x, labels) in zip(range(steps), batches, strict=False):
        loss = F.cross_entropy(model(x.to("pjrt")).flatten(0, -2), labels.to("pjrt").flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch_pjrt.sync()
    return model.eval()


def texts() -> tuple[int, Tensor, Tensor]:
    """How many characters there are, and rows of them to train with and to test with."""
    pages = "".join(p.read_text() for p in sorted(Path(__file__).parents[1].glob("docs/*.md")))
    letters = sorted(set(pages))
    number = {letter: n for n, letter in enumerate(letters)}
    coded = torch.tensor([number[c] for c in pages])
    rows = coded[: len(coded) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    return len(letters), rows[: -4 * BATCH], rows[-4 * BATCH :]


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    found: Any = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(found.target)


def drawn(x: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        picked = torch.randint(len(x), (BATCH,))
        yield x[picked], labels[picked]


def kinds(model: nn.Module, x: Tensor | None) -> Iterator[tuple[str, nn.Module]]:
    """A model on the CPU with each kind of weights; those of PT2E where there is an example."""
    yield "float32", model
    if any(isinstance(m, nn.Linear) and m.in_features % 128 == 0 for m in model.modules()):
        for name, config in CONFIGS.items():
            yield name, quantize_(copy.deepcopy(model), config, _wide)
    if x is not None:
        for dynamic in (False, True):
            name = f"PT2E, int8 {'dynamic' if dynamic else 'static'}"
            yield name, small(copy.deepcopy(model), x, dynamic=dynamic)


def _wide(_: str, layer: nn.Linear) -> bool:
    return layer.in_features % 128 == 0


def quality(steps: int) -> None:
    torch.manual_seed(0)
    print("\n## Quality\n")
    print(f"Small models, {steps} steps of training. Bytes are of all of a model's tensors.\n")
    print("| model | weights | bytes of float32's | perplexity | more |\n|---|---|--:|--:|--:|")
    n_letters, train, test = texts()
    llama = trained(
        Llama(n_letters, 128, 384, 4, 3), drawn(train[:, :-1], train[:, 1:]), steps
    ).cpu()
    calibration = [train[torch.randint(len(train), (BATCH,)), :-1].to("pjrt") for _ in range(4)]
    made = dict(kinds(llama, None))
    made["int4, groups of 128, GPTQ"] = gptq_(
        copy.deepcopy(llama).to("pjrt"), calibration, Int4(128), _wide
    )
    first = 0.0
    for name, model in made.items():
        there = model.to("pjrt")
        with torch.no_grad():
            loss = F.cross_entropy(
                there(test[:, :-1].to("pjrt")).flatten(0, 1), test[:, 1:].to("pjrt").flatten()
            )
        perplexity = math.exp(loss.item())
        first = first or perplexity
        row = f"{perplexity:.3f} | {100 * (perplexity / first - 1):.2f} %"
        print(
            f"| Llama, 3 layers, width 128 | {name} | {_share(model, llama)} | {row} |", flush=True
        )

    images, labels = digits()
    train_images, test_images, wanted = images[:-360], images[-360:], labels[-360:]
    print("\n| model | weights | bytes of float32's | accuracy | same answers |")
    print("|---|---|--:|--:|--:|")
    for title, small_model in (
        ("ViT, 2 layers, width 128", SmallVit()),
        ("ResNet, 3 blocks of 64", SmallResnet()),
    ):
        model = trained(small_model, drawn(train_images, labels[:-360]), steps).cpu()
        answers = None
        for name, kind in kinds(model, test_images):
            share = _share(kind, model)
            with torch.no_grad():
                given = kind.to("pjrt")(test_images.to("pjrt")).argmax(-1).cpu()
            answers = given if answers is None else answers
            right, same = ((given == other).float().mean() for other in (wanted, answers))
            print(f"| {title} | {name} | {share} | {right:.4f} | {same:.4f} |", flush=True)
            kind.cpu()


def _share(model: nn.Module, wide: nn.Module) -> str:
    return f"{stored(model) / stored(wide):.3f}"


#   name, what makes it, its input without the batch, batches
def timed_models() -> list[
    tuple[str, Callable[[], nn.Module], Callable[[int], Tensor], tuple[int, ...]]
]:
    return [
        (
            "Llama, 4 layers, width 1024, a token after 128",
            lambda: Llama(8192, 1024, 2816, 8, 4, cached=128),
            lambda n: torch.randint(8192, (n, 1)),
            (1, 8),
        ),
        ("ViT, 4 layers, width 384, 197 tokens", vit, lambda n: torch.randn(n, 197, 384), (1, 4)),
        ("ResNet, 4 blocks of 256 channels", resnet, lambda n: torch.randn(n, 3, 224, 224), (1, 2)),
    ]


def on_the_cpu(model: nn.Module, x: Tensor, *, by_inductor: bool) -> Callable[[], Any]:
    step: Any = torch.compile(model) if by_inductor else model

    def call() -> Any:
        with torch.no_grad():
            return step(x)

    call()
    return call


def times(*, inductor: bool) -> None:
    import torchao.quantization as torchao  # pyright: ignore[reportMissingImports]

    print("\n## Times\n")
    print("Random weights; medians of calls in turns, in ms; errors relative to float32.")
    for title, make, given, batches in timed_models():
        torch.manual_seed(0)
        wide = make().eval()
        is_llama = isinstance(wide, Llama)
        rows: dict[str, list[str]] = {}
        for batch in batches:
            x = given(batch)
            made = dict(kinds(wide, None if is_llama else x))
            with torch.no_grad():
                wanted = wide(x)
            calls: dict[str, Callable[[], Any]] = {}
            for name, model in made.items():
                if batch == batches[0]:
                    with torch.no_grad():
                        error = float((model(x) - wanted).norm() / wanted.norm())
                    rows[name] = [_share(model, wide), f"{error:.4f}"]
                calls[name] = compiled(copy.deepcopy(model).to("pjrt"), x.to("pjrt"))
            theirs = {"float32": wide}
            if not isinstance(wide, nn.Sequential) or title.startswith("ViT"):
                for name, config in THEIRS.items():
                    theirs[name] = copy.deepcopy(wide)
                    torchao.quantize_(theirs[name], getattr(torchao, config)())
            for name, model in theirs.items():
                layers = "PyTorch" if name == "float32" else "torchao"
                calls[f"{layers} on the CPU, {name}"] = on_the_cpu(model, x, by_inductor=False)
                if inductor:
                    calls[f"{layers} by Inductor, {name}"] = on_the_cpu(model, x, by_inductor=True)
            for name, took in in_turns(calls, rounds=15).items():
                rows.setdefault(name, ["", ""]).append(f"{took:.1f}")
        print(f"\n| {title} | bytes | error |" + "".join(f" batch {b} |" for b in batches))
        print("|---|--:|--:|" + "--:|" * len(batches))
        for name, cells in rows.items():
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def ahead(target: str) -> None:
    print(f"\n## One token of Llama, compiled for {target}\n")
    print(
        "In bfloat16, batch 1, 4 layers, width 1024, a token after 128; head and embedding, too.\n"
    )
    print(
        "| weights | arguments, MB | of bfloat16's | read of HBM, MB | of bfloat16's | between, MB |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    first: list[float] = []
    _, make, given, _ = timed_models()[0]
    torch.manual_seed(0)
    for name, model in kinds(make().eval(), None):
        there = model.to("pjrt", torch.bfloat16)
        made = torch_pjrt.compile_for(target, there, given(1).to("meta"))
        sizes = [made.argument_bytes / 1e6, hbm_reads(made.text()) / 1e6]
        first = first or sizes
        called = "bfloat16" if name == "float32" else name
        cells = " | ".join(
            f"{n:.1f} | {n / wide:.3f}" for n, wide in zip(sizes, first, strict=True)
        )
        print(f"| {called} | {cells} | {made.temporary_bytes / 1e6:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--parts", nargs="*", default=["quality", "times", "ahead"])
    parser.add_argument("--inductor", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.zeros(1, device="pjrt")  # starts the device
    # Many models share a forward.
    torch._dynamo.config.recompile_limit = 1000  # pyright: ignore[reportAttributeAccessIssue]
    print("# Models with weights of few bits\n")
    print("Made by `python benchmarks/quant_models.py`; [the layers](../../docs/quantization.md).")
    if "quality" in args.parts:
        quality(args.steps)
    if "times" in args.parts:
        times(inductor=args.inductor)
    if "ahead" in args.parts:
        for target in ("v5e:2x2", "h100"):
            ahead(target)


if __name__ == "__main__":
    main()
