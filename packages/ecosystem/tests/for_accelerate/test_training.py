"""A loop with `Accelerator()` trains on `pjrt` as on the CPU, one program a step, and reads nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import InitProcessGroupKwargs
from torch import nn

from small import Costs, model, rows
from torch_pjrt.errors import UnsupportedError
from torch_pjrt_ecosystem.placement import LeavesDevice


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate keeps its device for the process: a test begins and ends without."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(accelerator: Accelerator, epochs: int = 2) -> tuple[list[float], Costs]:
    """Losses of each batch, and what each optimizer's step cost."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    loader = torch.utils.data.DataLoader(rows(), 4)  # type: ignore[arg-type]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
    losses, costs = [], Costs()
    for _ in range(epochs):
        for x, labels in loader:
            with accelerator.accumulate(net):
                loss = nn.functional.cross_entropy(net(x), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    costs.mark()
            losses.append(loss.detach())
    return [loss.item() for loss in losses], costs


@pytest.mark.slow("rows")
@pytest.mark.parametrize("accumulated", [2, 1])
def test_losses_are_the_cpus_with_one_program_a_step_and_no_read(accumulated: int) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=accumulated)

    losses, costs = train(accelerator)

    assert accelerator.device == torch.device("pjrt:0")
    assert set(costs.steps[3:]) == {(0, 1, 0)}
    assert costs.fallbacks == 0
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    on_cpu, _ = train(Accelerator(cpu=True, gradient_accumulation_steps=accumulated))
    torch.testing.assert_close(losses, on_cpu, rtol=1e-5, atol=1e-6)


def test_bf16_is_the_cpus_autocast() -> None:
    losses, costs = train(Accelerator(mixed_precision="bf16"))

    assert set(costs.steps[3:]) == {(0, 1, 0)}
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    on_cpu, _ = train(Accelerator(cpu=True, mixed_precision="bf16"))
    torch.testing.assert_close(losses, on_cpu, rtol=0, atol=5e-3)
    assert losses != train_in_float32()


def train_in_float32() -> list[float]:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return train(Accelerator())[0]


def scaled_on_the_cpu(scale: float, steps: int) -> tuple[list[float], list[bool], list[float]]:
    """Losses, skipped steps and learning rates of PyTorch's own loop with float16 on the CPU."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    losses, skipped, rates = [], [], []
    for x, labels in list(torch.utils.data.DataLoader(rows(), 4))[:steps]:  # type: ignore[arg-type]
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(net(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped.append(scaler.get_scale() < before)
        if not skipped[-1]:
            scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
    return losses, skipped, rates


@pytest.mark.parametrize("scale", [2.0**8, 2.0**40], ids=["taken", "skipped"])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_fp16_scales_and_skips_steps_as_pytorch_does(scale: float) -> None:
    from accelerate.utils import GradScalerKwargs

    accelerator = Accelerator(
        mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=scale)]
    )
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    loader = torch.utils.data.DataLoader(rows(), 4)  # type: ignore[arg-type]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
    losses, skipped, rates = [], [], []
    for x, labels in loader:
        with accelerator.autocast():
            loss = nn.functional.cross_entropy(net(x), labels)
        accelerator.backward(loss)
        optimizer.step()
        skipped.append(accelerator.optimizer_step_was_skipped)
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])

    on_cpu = scaled_on_the_cpu(scale, len(losses))
    assert skipped == on_cpu[1] and any(skipped) == (scale > 2**20)
    torch.testing.assert_close(rates, on_cpu[2], rtol=0, atol=0)
    torch.testing.assert_close(losses, on_cpu[0], rtol=0, atol=5e-3)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("backend", ["inductor", "pjrt"])
def test_compiled_it_is_our_backend(backend: str) -> None:
    accelerator = Accelerator(dynamo_backend=backend)

    losses, costs = train(accelerator)

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    on_cpu, _ = train(Accelerator(cpu=True))
    torch.testing.assert_close(losses, on_cpu, rtol=1e-5, atol=1e-6)
    assert set(costs.steps[3:]) == {(0, 1, 0)} and costs.fallbacks == 0


def test_load_state_goes_on_exactly_with_dropout(tmp_path: Any) -> None:
    def steps(accelerator: Accelerator, net: nn.Module, optimizer: Any, n: int) -> list[float]:
        losses = []
        for x, labels in [(x.to("pjrt"), y.to("pjrt")) for x, y in batches[:n]]:
            loss = nn.functional.cross_entropy(net(x), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    batches = list(torch.utils.data.DataLoader(rows(), 8))  # type: ignore[arg-type]
    accelerator = Accelerator()
    net = model(dropout=0.5)
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 1e-2))
    steps(accelerator, net, optimizer, 2)
    accelerator.save_state(str(tmp_path / "state"))
    wanted = steps(accelerator, net, optimizer, 3)

    accelerator.load_state(str(tmp_path / "state"))

    assert steps(accelerator, net, optimizer, 3) == wanted
    assert (tmp_path / "state" / "random_state_pjrt_0.pt").is_file()


def test_a_model_that_leaves_the_device_is_a_warning() -> None:
    accelerator = Accelerator(cpu=True)

    with pytest.warns(LeavesDevice, match="Accelerate moves a model from `pjrt` to `cpu`"):
        accelerator.prepare(model().to("pjrt"))


@pytest.mark.parametrize("how", ["at hand", "named"])
def test_processes_without_a_number_on_their_host_are_refused(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    if how == "named":
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "pjrt")

    with pytest.raises(UnsupportedError, match=r"(?s)a model of its own.*LOCAL_RANK"):
        Accelerator()


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_a_backend_without_collectives_on_the_device_is_refused(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(UnsupportedError, match="no collectives of tensors on `pjrt`"):
        Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend=backend)])


def test_processes_without_torch_pjrt_spmd_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delattr(torch.distributed.Backend, "PJRT")

    with pytest.raises(UnsupportedError, match="pip install torch-pjrt-spmd"):
        Accelerator()


@pytest.mark.parametrize("how", ["plugin", "environment"])
def test_fsdp_in_one_process_is_refused(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = None
    if how == "environment":
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        monkeypatch.setenv("FSDP_VERSION", "2")
    else:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2)

    before = dict(os.environ)

    with pytest.raises(UnsupportedError, match="would train an unsharded model"):
        Accelerator(fsdp_plugin=plugin)

    assert dict(os.environ) == before  # so that the next one is not refused for this one's plugin
