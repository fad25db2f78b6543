"""Scripts as torch_xla's users write them, against the same on the CPU."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import warm
from torch_xla.amp import GradScaler, autocast, syncfree
from torch_xla.distributed.parallel_loader import MpDeviceLoader, ParallelLoader
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers
from torch_xla.utils import serialization
from torch_xla.utils.utils import SampleGenerator

PREEMPTED = """
import os, signal, sys, torch, torch_xla
from torch_xla.experimental.distributed_checkpoint import CheckpointManager
manager = CheckpointManager(sys.argv[1], save_interval=100)
state = {"x": torch.ones(2, device="xla")}
print([manager.save(step, state) for step in range(1, 5)], manager.all_steps())
os.kill(os.getpid(), signal.SIGTERM)
print(manager.should_save(5), manager.save(5, state), manager.reached_preemption(5), manager.all_steps())
"""


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 8, generator=generator), torch.randint(4, (6,), generator=generator))
        for _ in range(4)
    ]


def losses_on_the_cpu(model: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for x, y in batches():
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("older", [False, True], ids=["MpDeviceLoader", "ParallelLoader"])
def test_a_loop_trains_as_on_the_cpu(older: bool) -> None:
    device = xm.xla_device()
    model = small_model()
    wanted = losses_on_the_cpu(copy.deepcopy(model))
    model.to(device)
    optimizer = syncfree.AdamW(model.parameters(), 1e-2)
    loader = (
        ParallelLoader(batches(), [device]).per_device_loader(device)
        if older
        else MpDeviceLoader(batches(), device, batches_per_execution=2)
    )

    losses: list[float] = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(optimizer)
        xm.add_step_closure(lambda loss: losses.append(loss.item()), (loss,))

    assert losses == pytest.approx(wanted, rel=1e-5)


def test_a_loader_has_the_length_and_the_dataset_of_its_own() -> None:
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(5, 2)), 2)
    loader = MpDeviceLoader(data, "xla")

    assert len(loader) == 3
    assert loader.dataset is data.dataset
    assert [batch[0].shape[0] for batch in loader] == [2, 2, 1]
    assert {batch[0].device.type for batch in loader} == {"pjrt"}
    assert len(list(MpDeviceLoader(SampleGenerator(torch.ones(2), 3), "xla"))) == 3


class TellsItsEnd:
    """A loader that says which batch is the last one, as Accelerate's."""

    end_of_dataloader = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.end_of_dataloader = False
        for i in range(4):
            self.end_of_dataloader = i == 3
            yield torch.full((2,), float(i))


def test_a_loader_that_tells_its_end_is_not_read_in_advance() -> None:
    loader = MpDeviceLoader(TellsItsEnd(), "xla")

    assert [loader.end_of_dataloader for _ in loader] == [False, False, False, True]


def test_mixed_precision_with_a_scaler_trains() -> None:
    model = small_model().to("xla")
    optimizer = syncfree.SGD(model.parameters(), 0.1)
    scaler = GradScaler()
    (x, y), losses = batches()[0], []
    x, y = x.to("xla"), y.to("xla")
    for _ in range(5):
        with autocast(torch_xla.device(), dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())

    assert losses == sorted(losses, reverse=True)


def test_what_is_saved_is_on_the_cpu(tmp_path: Path) -> None:
    model = small_model().to("xla")
    state = {"model": model.state_dict(), "step": 3, "more": [torch.ones(2, device="xla")]}

    xm.save(state, tmp_path / "a.pt")
    serialization.save(state, str(tmp_path / "b.pt"))

    for found in (torch.load(tmp_path / "a.pt"), serialization.load(str(tmp_path / "b.pt"))):
        assert found["step"] == 3
        assert found["more"][0].tolist() == [1.0, 1.0]
        for name, value in found["model"].items():
            assert value.device.type == "cpu"
            assert torch.equal(value, model.state_dict()[name].cpu())


def test_scan_is_a_loop_with_gradients() -> None:
    weight = torch.full((3,), 0.5, requires_grad=True)
    xs = torch.arange(12.0).view(4, 3) / 10

    def of(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        leaf = weight.detach().to(device).requires_grad_()
        carry, ys = scan(lambda c, x: (c * leaf + x, (c * x).sin()), leaf * 0, xs.to(device))
        (carry.sum() + ys.sum()).backward()
        assert leaf.grad is not None
        return carry.detach().cpu(), ys.detach().cpu(), leaf.grad.cpu()

    for found, wanted in zip(of("xla"), of("cpu"), strict=True):
        torch.testing.assert_close(found, wanted)


def test_scanned_layers_are_layers_one_after_another() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    x = torch.randn(2, 4)
    wanted = layers[2](layers[1](layers[0](x)))

    found = scan_layers(layers.to("xla"), x.to("xla"))

    torch.testing.assert_close(found.cpu(), wanted, atol=1e-6, rtol=1e-5)


def test_pytorchs_backend_openxla_runs_on_the_device() -> None:
    model = small_model()
    x = batches()[0][0]
    wanted = model(x)

    found = torch.compile(model.to("xla"), backend="openxla")(x.to("xla"))

    torch.testing.assert_close(found.cpu(), wanted, atol=1e-6, rtol=1e-5)


def test_kernels_and_jax_functions_run() -> None:
    from torch_xla.core.xla_builder import call_jax
    from torch_xla.experimental.custom_kernel import flash_attention, gmm

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 8, 4).unbind()
    wanted = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    found = flash_attention(q.to("xla"), k.to("xla"), v.to("xla"), causal=True)
    torch.testing.assert_close(found.cpu(), wanted, atol=1e-5, rtol=1e-5)

    left, right = torch.randn(4, 2), torch.randn(2, 2, 3)
    groups = torch.tensor([1, 3], dtype=torch.int32)
    wanted = torch.cat([left[:1] @ right[0], left[1:] @ right[1]])
    found = gmm(left.to("xla"), right.to("xla"), groups.to("xla"))
    torch.testing.assert_close(found.cpu(), wanted, atol=1e-6, rtol=1e-5)

    assert call_jax(lambda a, b: a - b, (left.to("xla"), left.to("xla"))).abs().sum().item() == 0


def test_an_exported_program_is_stablehlo(tmp_path: Path) -> None:
    from torch_xla.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo

    model, x = small_model(), batches()[0][0]
    program = exported_program_to_stablehlo(torch.export.export(model, (x,)))
    program.save(tmp_path / "model")

    assert "stablehlo.dot_general" in program.get_stablehlo_text()
    for run in (program, StableHLOGraphModule.load(tmp_path / "model")):
        torch.testing.assert_close(run(x).cpu(), model(x), atol=1e-6, rtol=1e-5)


def test_checkpoints_are_kept_and_found(tmp_path: Path) -> None:
    from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer

    model = small_model().to("xla")
    optimizer = prime_optimizer(torch.optim.AdamW(model.parameters()))
    manager = CheckpointManager(str(tmp_path), 2, max_to_keep=2, chkpt_on_preemption=False)
    saved = [
        manager.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        for step in range(1, 7)
    ]
    wanted = {name: value.cpu() for name, value in model.state_dict().items()}
    nn.init.zeros_(next(model.parameters()))

    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    manager.restore(6, state)
    model.load_state_dict(state["model"])

    assert saved == [False, True] * 3
    assert manager.all_steps() == [4, 6]
    assert all(torch.equal(v.cpu(), wanted[n]) for n, v in model.state_dict().items())


def test_a_run_that_is_told_to_end_before_its_first_checkpoint_saves_one(tmp_path: Path) -> None:
    done = warm.run(["-c", PREEMPTED, str(tmp_path)], dict(os.environ))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[False, False, False, False] []", "True True True [5]"]
