"""With TORCH_PJRT_CAPTURE_STEPS=1 steps of Lightning's `Trainer` are replays, and do what they did."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from small import model, rows
from torch_pjrt.extend import counters

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*num_workers:UserWarning",
    "ignore:.*log_every_n_steps:UserWarning",
    "ignore:.*configured `validation_step`:UserWarning",
    "ignore:.*returned `None`:UserWarning",
    "ignore:.*defined a `validation_step`:UserWarning",
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:.*TreeSpec:FutureWarning",
    "ignore::DeprecationWarning",
)
N_STEPS = 20


@pytest.fixture(
    params=["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.slow)]
)
def pl(request: pytest.FixtureRequest) -> ModuleType:
    """Lightning, by both of its names."""
    return import_module(request.param)


def module_of(pl: ModuleType, dropout: float = 0.0, **methods: Callable[..., Any]) -> Any:
    """A module; `methods` are instead of its own."""

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model(dropout)
            self.weight = 0.5

        def training_step(self, batch: Any, index: int) -> Any:
            x, labels = batch
            loss = self.weight * nn.functional.cross_entropy(self.inner(x).float(), labels)
            self.log("loss", loss, prog_bar=True, on_epoch=True)
            self.log_dict({"double": 2 * loss, "weight": self.weight}, on_epoch=True)
            return {"loss": loss, "seen": labels.max()}

        def validation_step(self, batch: Any, index: int) -> None:
            x, labels = batch
            self.log("validation", nn.functional.cross_entropy(self.inner(x), labels))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    for name, method in methods.items():
        setattr(Classifier, name, method)
    torch.manual_seed(0)
    return Classifier()


def recorder(pl: ModuleType, change: Callable[[Any], None]) -> Any:
    """A callback that keeps what is logged and given, and does something to the module in the middle."""

    class Recorder(pl.Callback):
        def __init__(self) -> None:
            self.lines: list[Any] = []

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
        ) -> None:
            logged = {k: float(x) for k, x in trainer.callback_metrics.items()}
            given = {k: float(x) for k, x in outputs.items()}
            self.lines.append((logged, given))
            if trainer.global_step == N_STEPS // 2:
                change(module)

    return Recorder()


def trained(
    pl: ModuleType,
    folder: Path,
    change: Callable[[Any], None] = lambda _: None,
    dropout: float = 0.0,
    methods: dict[str, Callable[..., Any]] | None = None,
    callbacks: Callable[[ModuleType], list[Any]] = lambda _: [],
    **arguments: Any,
) -> tuple[list[Any], list[torch.Tensor]]:
    """What was logged and given in each step, and the weights."""
    kept = recorder(pl, change)
    settings: dict[str, Any] = {
        "max_steps": N_STEPS, "max_epochs": 9, "accelerator": "pjrt", "logger": False,
        "gradient_clip_val": 0.5, "default_root_dir": folder, "enable_model_summary": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "limit_val_batches": 0,
    }  # fmt: skip
    net = module_of(pl, dropout, **methods or {})
    trainer = pl.Trainer(**settings | arguments, callbacks=[kept, *callbacks(pl)])
    batches = torch.utils.data.DataLoader(rows(64), 4)  # type: ignore[arg-type]
    trainer.fit(net, batches, batches)
    return kept.lines, [p.detach().cpu() for p in net.parameters()]


def _lose_interest(module: Any) -> None:
    module.weight = 0.125


def _freeze(module: Any) -> None:
    next(module.parameters()).requires_grad_(False)


# How it is trained; how many of its forwards and backwards are replays at least.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "as it is": ({}, 16),
    "dropout": ({"dropout": 0.5}, 16),
    "gradients of two batches": ({"accumulate_grad_batches": 2}, 24),
    "validation between": ({"val_check_interval": 5, "limit_val_batches": 2}, 16),
    "bfloat16": ({"precision": "bf16-mixed"}, 16),
    "an attribute that changes": ({"change": _lose_interest}, 9),
    "a weight that is frozen": ({"change": _freeze}, 9),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("case", CASES)
def test_captured_steps_do_what_steps_do(
    pl: ModuleType, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, n_replays = CASES[case]
    expected = trained(pl, tmp_path, **options)
    monkeypatch.setenv("TORCH_PJRT_CAPTURE_STEPS", "1")
    before = counters.replays

    found = trained(pl, tmp_path, **options)

    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert counters.replays - before >= n_replays


def _loss(self: Any, batch: Any) -> torch.Tensor:
    x, labels = batch
    return nn.functional.cross_entropy(self.inner(x).float(), labels)


def _using_its_number(self: Any, batch: Any, index: int) -> torch.Tensor:
    return _loss(self, batch) * (1 + index % 2)


def _asking_the_trainer(self: Any, batch: Any, index: int) -> torch.Tensor:
    return _loss(self, batch) * (1 + self.global_step % 2)


def _asking_for_a_logger(self: Any, batch: Any, index: int) -> torch.Tensor:
    if self.logger is not None:
        self.logger.experiment.add_scalar("x", 1.0)
    return _loss(self, batch)


def _counting(self: Any, batch: Any, index: int) -> torch.Tensor:
    self.weight += 1
    return _loss(self, batch) * self.weight


def _without_a_loss(self: Any, batch: Any, index: int) -> None:
    return None


def _of_any_arguments(self: Any, *args: Any) -> torch.Tensor:
    return _loss(self, args[0]) * (1 + args[1] % 2)


@functools.lru_cache
def _wrapped() -> Callable[..., Any]:
    @functools.wraps(_using_its_number)
    def step(self: Any, batch: Any, index: int) -> torch.Tensor:
        return _using_its_number(self, batch, index)

    return step


def _looking_at_the_loss(self: Any, loss: torch.Tensor) -> None:
    self.weight = loss.detach()


def _scaling(self: Any, loss: torch.Tensor) -> None:
    (loss * 2).backward()


def _before_zero_grad(pl: ModuleType) -> list[Any]:
    class Shrinking(pl.Callback):
        def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
            with torch.no_grad():
                next(module.parameters()).mul_(0.9)

    return [Shrinking()]


# Steps that are not captured, or not replayed; and a word of the warning that says why.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "its number": ({"methods": {"training_step": _using_its_number}}, "`index`"),
    "the step": ({"methods": {"training_step": _asking_the_trainer}}, "`global_step`"),
    "a logger": ({"methods": {"training_step": _asking_for_a_logger}}, "`logger`"),
    "any arguments": ({"methods": {"training_step": _of_any_arguments}}, "variable number"),
    "a wrapper": ({"methods": {"training_step": _wrapped()}}, "a wrapper"),
    "no loss": ({"methods": {"training_step": _without_a_loss}}, "no loss"),
    "a count": ({"methods": {"training_step": _counting}}, "`self.weight`|weight"),
    "a hook of the module": (
        {"methods": {"on_before_backward": _looking_at_the_loss}},
        "`on_before_backward`",
    ),
    "its own backward": ({"methods": {"backward": _scaling}}, "`backward`"),
    "a hook of a callback": ({"callbacks": _before_zero_grad}, "`Shrinking`"),
    "float16": ({"precision": "16-mixed"}, "precision"),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("case", REFUSED)
def test_step_that_cannot_be_captured_runs_as_it_is_and_says_why(
    pl: ModuleType, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, word = REFUSED[case]
    expected = trained(pl, tmp_path, **options)
    monkeypatch.setenv("TORCH_PJRT_CAPTURE_STEPS", "1")
    before = counters.replays

    with pytest.warns(UserWarning, match=rf"(?s)captured.*({word})"):
        found = trained(pl, tmp_path, **options)

    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert counters.replays == before


def test_batch_with_a_tensor_elsewhere_runs_as_it_is(
    pl: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        return _loss(self, batch[:2]) * batch[2].item()

    def transfer_batch_to_device(self: Any, batch: Any, device: Any, number: int) -> Any:
        return (*(x.to(device) for x in batch), torch.ones(1))

    options: dict[str, Any] = {"methods": locals_of(training_step, transfer_batch_to_device)}
    expected = trained(pl, tmp_path, **options)
    monkeypatch.setenv("TORCH_PJRT_CAPTURE_STEPS", "1")

    with pytest.warns(UserWarning, match="a tensor of the batch is not on the device"):
        found = trained(pl, tmp_path, **options)

    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def locals_of(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {f.__name__: f for f in functions}


def test_nothing_is_captured_unless_asked_for(pl: ModuleType, tmp_path: Path) -> None:
    before = counters.replays

    trained(pl, tmp_path, max_steps=8)

    assert counters.replays == before
