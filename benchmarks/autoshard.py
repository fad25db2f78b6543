"""Plans of `auto_shard` beside hand-made ones, and its estimates beside XLA's, as tables of Markdown.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/autoshard.py            # all
XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/autoshard.py plans
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_pjrt_spmd import Mesh, Plan, auto_shard, program_reports, use_mesh

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))
from train_gpt import GPT  # noqa: E402

GIB = 2**30
Specs = Mapping[str, Sequence[Any]]


class Experts(nn.Module):
    """A layer of experts, as GShard writes it: products with one-hot tensors send tokens to experts."""

    def __init__(self, experts: int, width: int, inner: int, capacity: int) -> None:
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, inner))
        self.down = nn.Parameter(torch.empty(experts, inner, width))
        nn.init.normal_(self.up, std=width**-0.5)
        nn.init.normal_(self.down, std=inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:  # groups, tokens, width
        weight, expert = self.gate(x).softmax(-1).max(-1)
        one_hot = F.one_hot(expert, self.experts).to(x.dtype)
        place = ((one_hot.cumsum(1) - 1) * one_hot).sum(-1)
        is_in = (place < self.capacity).to(x.dtype)
        slot = F.one_hot(place.clamp(max=self.capacity - 1).long(), self.capacity).to(x.dtype)
        send = torch.einsum("gse,gsc,gs->gsec", one_hot, slot, is_in)
        taken = torch.einsum("gsec,gsm->egcm", send, x)
        made = torch.einsum("egcm,emh->egch", taken, self.up).relu()
        made = torch.einsum("egch,ehm->egcm", made, self.down)
        return torch.einsum("gsec,gs,egcm->gsm", send, weight, made)


class VisionTransformer(nn.Module):
    """Patches by a convolution, encoder layers of PyTorch's, a head."""

    def __init__(
        self, layers: int, width: int, heads: int, size: int = 224, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, (size // 16) ** 2, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Residual(nn.Module):
    def __init__(self, taken: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(taken, made, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(made) for _ in range(2))
        self.short = (
            nn.Conv2d(taken, made, 1, stride, bias=False) if taken != made else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        return (y + self.short(x)).relu()


def resnet(width: int = 64, classes: int = 1000) -> nn.Module:
    """As ResNet-18."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    layers.append(nn.MaxPool2d(3, 2, 1))
    taken = width
    for stage in range(4):
        for i in range(2):
            made = width * 2**stage
            layers.append(Residual(taken, made, 2 if stage and not i else 1))
            taken = made
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(taken, classes))


def gpt(
    layers: int, width: int, heads: int, length: int = 1024, vocabulary: int = 50304
) -> nn.Module:
    return GPT(layers, width, heads, length, vocabulary, 0.0)


def text_loss(logits: Tensor) -> Tensor:
    """As cross entropy costs, without targets."""
    return logits.float().log_softmax(-1)[..., 0].mean().neg()


@dataclass(frozen=True)
class Case:
    """A model on a mesh, and how one would spread it by hand."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    mesh: Mapping[str, int]
    by_hand: Callable[[nn.Module], Specs]
    loss: Callable[[Tensor], Tensor] | None = None
    across: tuple[str, ...] = ()
    limit: int = 10**15
    chip: str = "v5e"


def _all(model: nn.Module, **by_end: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Specs of parameters by the ends of their names, `up_weight` for `up.weight`; of others, whole."""
    found: dict[str, Sequence[Any]] = {}
    for name, p in model.named_parameters():
        for end, spec in by_end.items():
            if name.endswith(end.replace("__", ".")):
                found[name] = spec
                break
        else:
            found[name] = (None,) * p.dim()
    return found


def megatron(model: nn.Module) -> Specs:
    return {
        **_all(
            model,
            inputs__weight=("model", None), inputs__bias=("model",), output__weight=(None, "model"),
            up__weight=("model", None), up__bias=("model",), down__weight=(None, "model"),
        ),
        "argument 0": ("data", None),
    }  # fmt: skip


def fully_sharded(model: nn.Module) -> Specs:
    axes = ("data", "model")
    found: dict[str, Sequence[Any]] = {}
    for name, p in model.named_parameters():
        of_heads = ".inputs." in name  # 48 or 72 heads of queries, keys, values: not in 32 parts
        found[name] = (
            (None,) * p.dim() if p.dim() == 1 else (None, axes) if of_heads else (axes, None)
        )
    return {**found, "argument 0": (axes, None)}


def data_parallel(model: nn.Module) -> Specs:
    return {**_all(model), "argument 0": (("data", "model"),)}


def along_data(model: nn.Module) -> Specs:
    return {**_all(model), "argument 0": ("data",)}


def by_experts(model: nn.Module) -> Specs:
    return {**_all(model, up=("model",), down=("model",)), "argument 0": (("data", "model"),)}


def mlp() -> nn.Module:
    model = nn.Sequential()
    model.add_module("up", nn.Linear(4096, 16384))
    model.add_module("act", nn.GELU())
    model.add_module("down", nn.Linear(16384, 4096))
    return model


def _tokens(batch: int, length: int = 1024) -> Callable[[], Tensor]:
    return lambda: torch.empty(batch, length, dtype=torch.int64, device="meta")


def _floats(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.empty(*shape, device="meta")


FLAT, SQUARE = {"data": 8}, {"data": 4, "model": 8}
CASES = [
    Case("MLP, Megatron", mlp, _floats(512, 4096), {"data": 2, "model": 4}, megatron),
    Case("MLP, data parallel", mlp, _floats(65536, 4096), {"data": 2, "model": 4}, data_parallel),
    Case("GPT 12 x 1024, data x tensor", lambda: gpt(12, 1024, 16), _tokens(64), SQUARE, megatron, text_loss),
    Case("GPT 12 x 1024, fully sharded", lambda: gpt(12, 1024, 16), _tokens(64), SQUARE, fully_sharded,
         text_loss, limit=4 * GIB),
    Case("GPT 48 x 1536, data x tensor", lambda: gpt(48, 1536, 24), _tokens(64), SQUARE, megatron, text_loss),
    Case("GPT 48 x 1536, fully sharded", lambda: gpt(48, 1536, 24), _tokens(64), SQUARE, fully_sharded,
         text_loss, limit=12 * GIB),
    Case("GPT 48 x 1536, hybrid", lambda: gpt(48, 1536, 24), _tokens(64), SQUARE, megatron, text_loss,
         ("data",)),
    Case("GPT 48 x 1536, 1-D", lambda: gpt(48, 1536, 24), _tokens(64), FLAT, along_data, text_loss),
    Case("MoE, experts", lambda: Experts(32, 1024, 4096, 64), _floats(32, 1024, 1024), SQUARE, by_experts),
    Case("ViT 12 x 768", lambda: VisionTransformer(12, 768, 12), _floats(256, 3, 224, 224), SQUARE,
         data_parallel),
    Case("ResNet-18", resnet, _floats(256, 3, 224, 224), SQUARE, data_parallel),
    *(
        Case(f"{name}, {how}", model, inputs, mesh, by_hand, across=across)
        for name, model, inputs, square_by_hand in (
            ("MoE", lambda: Experts(32, 1024, 4096, 64), _floats(32, 1024, 1024), by_experts),
            ("ViT 12 x 768", lambda: VisionTransformer(12, 768, 12), _floats(256, 3, 224, 224),
             data_parallel),
            ("ResNet-18", resnet, _floats(256, 3, 224, 224), data_parallel),
        )
        for how, mesh, by_hand, across in (
            ("1-D", FLAT, along_data, ()), ("hybrid", SQUARE, square_by_hand, ("data",)),
        )
    ),
]  # fmt: skip


def planned(case: Case, by_hand: bool, seconds: float = 8.0) -> tuple[Plan, float]:
    """The plan of a case, and the seconds that it took."""
    with torch.device("meta"):
        model = case.model()
    began = time.perf_counter()
    plan = auto_shard(
        model,
        case.inputs(),
        case.mesh,
        optimizer=torch.optim.AdamW,
        loss=case.loss,
        chip=case.chip,
        across=case.across,
        memory_per_device=case.limit,
        plan=case.by_hand(model) if by_hand else None,
        seconds=seconds,
    )
    return plan, time.perf_counter() - began


def plans(only: str = "") -> Iterator[str]:
    yield (
        "| model, plan by hand | mesh | auto, ms | by hand, ms | auto / hand | memory, GiB: auto, hand | "
        "found in, s | at least, ms |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for case in CASES:
        if only in case.name:
            auto, took = planned(case, False)
            hand, _ = planned(case, True)
            mesh = " x ".join(f"{k} {n}" for k, n in case.mesh.items())
            mesh += f" ({', '.join(case.across)} over slices)" if case.across else ""
            yield (
                f"| {case.name} | {mesh} | {auto.seconds * 1e3:.2f} | {hand.seconds * 1e3:.2f} | "
                f"{auto.seconds / hand.seconds:.3f} | {auto.memory.peak / GIB:.2f}, "
                f"{hand.memory.peak / GIB:.2f} | {took:.1f} | {auto.lower_bound_s * 1e3:.2f} |"
            )


# Small enough for eight virtual chips: a model, its input, its loss.
SMALL: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], Callable[[Tensor], Tensor]]] = {
    "MLP": (
        lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)),
        lambda: torch.randn(16384, 256),
        lambda y: y.square().mean(),
    ),
    "GPT, 4 layers of 128": (
        lambda: gpt(4, 128, 4, 128, 256), lambda: torch.randint(0, 256, (32, 128)), text_loss,
    ),
    "ViT, 4 layers of 128": (
        lambda: VisionTransformer(4, 128, 4, 64, 10), lambda: torch.randn(64, 3, 64, 64), text_loss,
    ),
    "ResNet-18, a fourth as wide": (
        lambda: resnet(16, 10), lambda: torch.randn(64, 3, 64, 64), text_loss,
    ),
    "MoE, 8 experts": (
        lambda: Experts(8, 128, 512, 64), lambda: torch.randn(16, 128, 128), lambda y: y.square().mean(),
    ),
}  # fmt: skip


def steps_of(name: str, mesh: Mesh | None, n_steps: int = 3) -> tuple[list[float], Plan | None]:
    """Losses of some steps, and the plan."""
    model_of, input_of, loss_of = SMALL[name]
    use_mesh(None)
    torch.manual_seed(0)
    model = model_of().to("pjrt")
    x = input_of()
    optimizer = torch.optim.AdamW(model.parameters())
    plan = None
    if mesh is not None:
        plan = auto_shard(model, x, mesh, optimizer=optimizer, loss=loss_of, chip="v5e", seconds=4)
    losses = []
    for _ in range(n_steps):
        loss = loss_of(model(plan.place(x) if plan is not None else x.to("pjrt")))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses], plan


def estimates(only: str = "") -> Iterator[str]:
    from torch_pjrt_spmd.exchanges import noted_programs

    yield (
        "| model on 2 x 4 virtual chips | products of a chip: planned / XLA | memory: planned / XLA, MiB | "
        "exchanged, us: planned / compiled | work that all chips do alike | losses, and on one chip |"
    )
    yield "|---|--:|--:|--:|--:|---|"
    for name in SMALL:
        if only not in name:
            continue
        expected, _ = steps_of(name, None)
        losses, plan = steps_of(name, Mesh((2, 4), ("data", "model")))
        assert plan is not None
        compiled: Any = noted_programs()[-1].compiled
        memory = compiled.memory_analysis()
        needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        flops = compiled.cost_analysis()["flops"]
        compared = plan.compare()
        alike = program_reports()[-1].replicated
        texts = [", ".join(f"{x:.6f}" for x in of) for of in (losses, expected)]
        yield (
            f"| {name} | {plan.flops / flops:.3f} | {plan.memory.peak / needed:.3f}, {needed / 2**20:.1f} | "
            f"{plan.exchanged_s * 1e6:.1f} / {compared.compiled_s * 1e6:.1f} | {alike:.1%} | "
            f"{texts[0]}; {texts[1]} |"
        )


# Programs of GiBs: what fits a chip's vector memory (128 MiB) is not in the memory that XLA counts.
TARGET, TARGET_SHAPE = "v5e:2x2", (2, 2)
ON_SLICE: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], Callable[[Tensor], Tensor]]] = {
    "MLP, 2048 to 8192, 65,536 rows": (
        lambda: nn.Sequential(nn.Linear(2048, 8192), nn.ReLU(), nn.Linear(8192, 2048)),
        lambda: torch.empty(65536, 2048, device="meta"),
        lambda y: y.square().mean(),
    ),
    "GPT, 2 layers of 1024, 32,768 tokens": (
        lambda: gpt(2, 1024, 8, 512, 8192), lambda: torch.empty(64, 512, dtype=torch.int64, device="meta"),
        text_loss,
    ),
    "MoE, 16 experts of 1024 to 4096, 65,536 tokens": (
        lambda: Experts(16, 1024, 4096, 64), lambda: torch.empty(64, 1024, 1024, device="meta"),
        lambda y: y.square().mean(),
    ),
}  # fmt: skip


def slices(only: str = "") -> Iterator[str]:
    """For TPUs that are not here: needs libtpu."""
    from torch_pjrt import compile_for
    from torch_pjrt_spmd.reporting import reports_of

    yield (
        f"| model for `{TARGET}` | products: planned / compiled | and / XLA's analysis, loops once | "
        "memory: planned / XLA, MiB | exchanged, us: planned / compiled | work that all chips do alike |"
    )
    yield "|---|--:|--:|--:|--:|--:|"
    for name, (model_of, input_of, loss_of) in ON_SLICE.items():
        if only not in name:
            continue
        model = model_of().to("pjrt")
        optimizer = torch.optim.AdamW(model.parameters())

        def step(
            x: Tensor, model: Any = model, optimizer: Any = optimizer, loss_of: Any = loss_of
        ) -> Tensor:
            loss = loss_of(model(x))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        x = input_of()
        plan = auto_shard(
            step, x, Mesh.for_target(TARGET, TARGET_SHAPE, ("data", "model")), seconds=4
        )
        found = compile_for(TARGET, step, plan.place(x))
        [report] = reports_of([found])
        needed = found.memory_bytes - found.code_bytes
        yield (
            f"| {name} | {plan.flops / report.products:.3f} | {plan.flops / (found.flops or 1):.3f} | "
            f"{plan.memory.main / needed:.3f}, "
            f"{needed / 2**20:.1f} | {plan.exchanged_s * 1e6:.1f} / "
            f"{plan.compare(report).compiled_s * 1e6:.1f} | {report.replicated:.1%} |"
        )


if __name__ == "__main__":
    what = {"plans": plans, "estimates": estimates, "slices": slices}
    for name in sys.argv[1:2] or what:
        for line in what[name](*sys.argv[2:3]):
            print(line, flush=True)
