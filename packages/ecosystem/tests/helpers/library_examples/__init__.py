"""Training and inference as libraries document them, with tiny random models made here, on a device's name.

Each example is a function that takes "pjrt" or "cpu" and a `Costs`, which it marks where steps begin, and
gives the numbers to compare. It raises where the library has put its model elsewhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from small import Costs


@dataclass(frozen=True, slots=True)
class Example:
    """A row: what is shown, by which function, of which library, and how its text differs from the library's.

    distribution  whose version counts.
    function      `module:function` of this package.
    changed       the lines that name the device; "" where none does.
    cost          (reads, programs) of a step in steady state, None where there are no steps.
    from_step     from which on.
    needs         modules that must be importable.
    in_float64    it also runs in float64 on the CPU, which says how near the other two are to the truth.
    """

    name: str
    distribution: str
    function: str
    changed: str = ""
    cost: tuple[int, int] | None = (0, 1)
    from_step: int = 3
    needs: tuple[str, ...] = ()
    in_float64: bool = False

    def run(self, device: str, costs: Costs) -> Any:
        """Its numbers."""
        return self._function(device, costs)

    def run_in_float64(self) -> Any:
        """The same numbers, as exactly as they can be had."""
        return self._function("cpu", Costs(), torch.float64)

    @property
    def _function(self) -> Callable[..., Any]:
        module, _, function = self.function.partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), function)

    def missing(self) -> str | None:
        """Why it cannot run here."""
        for name in (self.distribution.replace("-", "_"), *self.needs):
            try:
                importlib.import_module(name)
            except Exception as error:
                return f"{name} cannot be imported: {type(error).__name__}: {error}"
        return None


TO_DEVICE = '`.to("pjrt")`'

EXAMPLES = (
    Example("LoRA by `Trainer`, saved and loaded", "peft", "adapters:lora"),
    Example("DoRA by `Trainer`", "peft", "adapters:dora"),
    Example("IA3 by `Trainer`", "peft", "adapters:ia3"),
    Example("`SFTTrainer`", "trl", "preferences:sft", needs=("datasets",)),
    Example("`DPOTrainer`", "trl", "preferences:dpo", needs=("datasets",)),
    Example(  # a step, and its EMA, which runs before the next batch
        "training a UNet with `Accelerator` and an EMA",
        "diffusers",
        "diffusion:training",
        cost=(0, 2),
        in_float64=True,
    ),
    Example("`DDPMPipeline`", "diffusers", "diffusion:ddpm", TO_DEVICE),
    Example(
        "`EulerDiscreteScheduler`, its loop",
        "diffusers",
        "diffusion:euler",
        TO_DEVICE,
        in_float64=True,
    ),
    Example(
        "`FlowMatchEulerDiscreteScheduler`, its loop",
        "diffusers",
        "diffusion:flow",
        TO_DEVICE,
        in_float64=True,
    ),
    Example("training a ResNet, with Mixup and an EMA", "timm", "images:resnet", TO_DEVICE),
    Example("training a ViT, with Mixup and an EMA", "timm", "images:vit", TO_DEVICE),
    Example("non-maximum suppression of boxes", "torchvision", "boxes:nms", TO_DEVICE, None),
    Example("training through `roi_align`", "torchvision", "boxes:roi_align", TO_DEVICE),
    Example(
        "`encode`",
        "sentence-transformers",
        "sentences:encode",
        cost=(2, 2),
        from_step=2,
    ),
    Example(
        "`SentenceTransformerTrainer`",
        "sentence-transformers",
        "sentences:training",
        needs=("datasets",),
    ),
    Example("metrics of a classifier in its loop", "torchmetrics", "metrics:classes", TO_DEVICE),
    Example("areas under curves, ranks, errors", "torchmetrics", "metrics:others", TO_DEVICE, None),
    Example("`scatter`, six reductions", "torch-geometric", "graphs:scatter", TO_DEVICE, None),
    Example("training `SAGEConv`", "torch-geometric", "graphs:sage", TO_DEVICE),
    Example("training `GCNConv`", "torch-geometric", "graphs:gcn", TO_DEVICE, (2, 3)),
    Example("training `GATConv`", "torch-geometric", "graphs:gat", TO_DEVICE, (2, 3)),
)


def check_is_on(tensor_or_module: Any, device: str) -> None:
    """Raises for a model that is elsewhere: the worst that a library can do."""
    found = (
        {tensor_or_module.device.type}
        if isinstance(tensor_or_module, torch.Tensor)
        else {p.device.type for p in tensor_or_module.parameters()}
    )
    if found != {device}:
        raise AssertionError(f"it is on {found}, and was to be on {device}")


def sums(module: Any, but: frozenset[str] = frozenset()) -> list[float]:
    """A number of each parameter, but for those of these names."""
    named = module.cpu().named_parameters()
    return [p.detach().double().abs().sum().item() for name, p in named if name not in but]


def unseen(module: Any, loss_of: Callable[[Any], torch.Tensor]) -> frozenset[str]:
    """The names of parameters that a loss does not depend on, though they have gradients: those of rounding.

    Attention does not see a bias of its keys, which adds one number to all scores of a query. The gradient is
    zero; in float32 it is 1e-10 where the others are 1e-4 and more, in float64 1e-19. Adam divides by how
    large gradients are, and so makes whole steps of it, on every device others. What such a parameter ends at
    is no result of training, and nothing to compare.

    `loss_of` is called with the module, which is made float64 on the CPU: a gradient below a billionth of the
    largest is of rounding there.
    """
    module = module.cpu().double()
    module.zero_grad()
    loss_of(module).backward()
    largest = {n: p.grad.abs().max() for n, p in module.named_parameters() if p.grad is not None}
    limit = 1e-9 * max(largest.values())
    return frozenset(name for name, found in largest.items() if found < limit)
