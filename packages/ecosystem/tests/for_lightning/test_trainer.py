"""Lightning's `Trainer` trains on `pjrt` as on the CPU, one program a step, and reads nothing meanwhile."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from small import Costs, model, rows
from torch_pjrt.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*num_workers:UserWarning",
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:.*TreeSpec:FutureWarning",
    "ignore::DeprecationWarning",
)


@pytest.fixture(
    params=["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.slow)]
)
def pl(request: pytest.FixtureRequest) -> ModuleType:
    """Lightning, by both of its names."""
    return import_module(request.param)


def module(pl: ModuleType, dropout: float = 0.0) -> Any:
    class Classifier(pl.LightningModule):
        """Logs its loss in the progress bar, and keeps it."""

        def __init__(self) -> None:
            super().__init__()
            self.net = model(dropout)
            self.costs = Costs()
            self.losses: list[torch.Tensor] = []
            self.dtypes: set[torch.dtype] = set()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.costs.mark()
            x, labels = batch
            logits = self.net(x)
            self.dtypes.add(logits.dtype)
            loss = nn.functional.cross_entropy(logits, labels)
            self.log("loss", loss, prog_bar=True)
            self.losses.append(loss.detach())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, labels = batch
            self.log("validation", nn.functional.cross_entropy(self.net(x), labels))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    return Classifier()


def loader() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(rows(), 4)  # type: ignore[arg-type]


def train(
    pl: ModuleType, folder: Path, dropout: float = 0.0, resume: str | None = None, **arguments: Any
) -> tuple[Any, Any]:
    """The module and the trainer, after two epochs."""
    settings: dict[str, Any] = {
        "max_epochs": 2,
        "logger": False,
        "gradient_clip_val": 0.5,
        "default_root_dir": folder,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    net, trainer = module(pl, dropout), pl.Trainer(**settings | arguments)
    trainer.fit(net, loader(), loader(), ckpt_path=resume)
    return net, trainer


def losses(net: Any) -> list[float]:
    return [loss.item() for loss in net.losses]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    "arguments",
    [{}, {"accelerator": "pjrt"}, {"strategy": "pjrt"}, {"accelerator": "pjrt", "devices": 1}],
    ids=["auto", "accelerator", "strategy", "devices"],
)
def test_losses_are_the_cpus_with_one_program_a_step_and_no_read(
    pl: ModuleType, tmp_path: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the progress bar, which draws the loss; but for the time, it would draw it in each step."""
    monkeypatch.setattr("torch_pjrt_ecosystem.for_lightning.progress_bar.PERIOD_S", 1e9)
    net, trainer = train(pl, tmp_path, **arguments)

    assert trainer.strategy.root_device == torch.device("pjrt:0")
    assert {loss.device.type for loss in net.losses} == {
        "pjrt"
    }  # it takes the model back at the end
    steps = net.costs.steps
    assert {cost[:2] for cost in steps[3:7] + steps[10:]} == {(0, 1)} and net.costs.fallbacks == 0
    assert {cost[2] for cost in steps[3:7] + steps[11:]} == {0}  # another learning rate: its input
    on_cpu, its_trainer = train(pl, tmp_path, accelerator="cpu")
    torch.testing.assert_close(losses(net), losses(on_cpu), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        {name: x.cpu() for name, x in trainer.callback_metrics.items()},
        its_trainer.callback_metrics,
        rtol=1e-5,
        atol=1e-6,
    )


def test_the_progress_bar_draws_the_last_loss_of_an_epoch(pl: ModuleType, tmp_path: Path) -> None:
    drawn: list[float] = []
    progress = import_module(f"{pl.__name__}.callbacks").TQDMProgressBar

    class Bar(progress):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            drawn.append(self.get_metrics(trainer, module)["loss"])
            super().on_train_epoch_end(trainer, module)

    net, trainer = train(pl, tmp_path, callbacks=[Bar()])

    assert drawn == [losses(net)[7], losses(net)[15]]
    assert type(trainer.progress_bar_metrics["loss"]) is float


def test_bf16_is_the_cpus_autocast(pl: ModuleType, tmp_path: Path) -> None:
    net, _ = train(pl, tmp_path, precision="bf16-mixed", enable_progress_bar=False)
    on_cpu, _ = train(
        pl, tmp_path, precision="bf16-mixed", accelerator="cpu", enable_progress_bar=False
    )

    assert net.dtypes == {torch.bfloat16}
    torch.testing.assert_close(losses(net), losses(on_cpu), rtol=0, atol=5e-3)


def test_fp16_has_a_scaler_on_the_device(pl: ModuleType, tmp_path: Path) -> None:
    net, trainer = train(pl, tmp_path, precision="16-mixed", enable_progress_bar=False)
    exact, _ = train(pl, tmp_path, accelerator="cpu", enable_progress_bar=False)

    assert trainer.precision_plugin.scaler._device == "pjrt"
    assert trainer.precision_plugin.scaler.get_scale() > 1
    assert net.dtypes == {torch.float16}
    assert {cost[0] for cost in net.costs.steps[9:]} == {0}
    torch.testing.assert_close(losses(net)[0], losses(exact)[0], rtol=0, atol=5e-3)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_a_checkpoint_resumes_exactly(pl: ModuleType, tmp_path: Path) -> None:
    whole, _ = train(pl, tmp_path, enable_progress_bar=False)
    first, trainer = train(
        pl, tmp_path, enable_progress_bar=False, max_epochs=1, enable_checkpointing=True
    )
    file = trainer.checkpoint_callback.best_model_path

    resumed, _ = train(pl, tmp_path, enable_progress_bar=False, resume=file)

    assert losses(first) + losses(resumed) == losses(whole)
    for mine, wanted in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine.cpu(), wanted.cpu())


def test_a_validation_that_draws_numbers_leaves_those_of_training_alone(
    pl: ModuleType, tmp_path: Path
) -> None:
    """The check of the validation before training runs in a block that keeps random states."""
    found = []
    for n_checks in (0, 2):
        net = module(pl, dropout=0.5)
        validation = net.validation_step
        net.validation_step = lambda batch, index, v=validation: (
            torch.rand(3, device="pjrt"),
            v(batch, index),
        )[1]
        trainer = pl.Trainer(
            max_epochs=1,
            logger=False,
            num_sanity_val_steps=n_checks,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        torch.rand(1, device="pjrt").item()  # the device has been started
        torch.manual_seed(3)
        trainer.fit(net, loader(), loader())
        found.append(losses(net))

    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"devices": 2}, "there is one device to a process"),
        ({"num_nodes": 2}, "its strategy is one process"),
        ({"strategy": "single_device"}, "a strategy that trains on `cpu`"),
    ],
    ids=["devices", "nodes", "strategy"],
)
def test_what_would_train_elsewhere_is_refused(
    pl: ModuleType, tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match=words) as error:
        train(pl, tmp_path, accelerator="pjrt", **arguments)

    assert type(error.value).__name__ == "MisconfigurationException"


def test_autocast_for_another_device_is_refused(pl: ModuleType) -> None:
    precision = import_module(f"{pl.__name__}.plugins").MixedPrecision("bf16-mixed", "cuda")

    with pytest.raises(Exception, match="Mixed precision for `cuda` does nothing"):
        pl.Trainer(accelerator="pjrt", plugins=[precision], logger=False)


@pytest.mark.parametrize("accelerator", ["auto", "pjrt"])
def test_several_processes_that_would_each_train_alone_are_refused(
    pl: ModuleType, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(UnsupportedError, match="each would train a model of its own"):
        pl.Trainer(accelerator=accelerator, strategy="pjrt")
