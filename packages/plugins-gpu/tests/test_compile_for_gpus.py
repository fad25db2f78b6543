"""Training steps are compiled for GPUs that are not here, by JAX's plugin and a description of the card."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import DeviceError, DeviceFull
from torch_pjrt_gpu.aot import card_of, chips_of

HAS_PLUGIN = find_spec("jax_plugins") is not None and any(
    find_spec(f"jax_plugins.xla_cuda{n}") for n in (12, 13)
)

needs_plugin = pytest.mark.skipif(
    not HAS_PLUGIN or os.environ.get("JAX_PLATFORMS") != "cpu",
    reason="JAX's CUDA plugin is not installed (`hatch run aot:run` does), or JAX_PLATFORMS is not `cpu`",
)


@pytest.mark.skipif(HAS_PLUGIN, reason="JAX's CUDA plugin is installed")
def test_without_the_plugin_the_error_says_what_to_install() -> None:
    with pytest.raises(DeviceError, match=r"`h100` takes JAX's CUDA plugin[^$]*hint: pip install"):
        chips_of("h100")


def test_target_is_a_card_and_how_many_there_are() -> None:
    assert [(c.name, n) for c, n in filter(None, map(card_of, ("h100", "l4:4")))] == [
        ("NVIDIA H100 80GB HBM3", 1),
        ("NVIDIA L4", 4),
    ]
    assert card_of("v5e:2x4") is None


def step_of_a_model() -> tuple[object, list[torch.Tensor]]:
    layers = torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)
    model = torch.nn.Sequential(*layers).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("pjrt"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    y = torch.empty(64, dtype=torch.int64, device="meta")
    return step, [torch.empty(64, 256, device="meta"), y]


@needs_plugin
@pytest.mark.parametrize(("target", "sharded"), [("h100", False), ("a100:4", True)])
def test_training_step_compiles_for_a_card(target: str, sharded: bool) -> None:
    step, inputs = step_of_a_model()

    found = torch_pjrt.compile_for(target, step, *inputs, sharded=sharded)  # pyright: ignore[reportArgumentType]

    assert found.chip.startswith("NVIDIA")
    assert found.n_chips == (4 if sharded else 1)
    assert ("all-reduce" in found.collectives) is sharded
    assert found.flops is not None
    assert "bf16" in found.text()


@needs_plugin
def test_program_that_the_card_has_no_room_for_is_refused() -> None:
    rows = torch.empty(1 << 18, 8, device="meta")

    with pytest.raises(DeviceFull, match=r"than a chip of `h100` has[^$]*the chip has 80.0 GiB"):
        torch_pjrt.compile_for("h100", lambda x: (x @ x.T).sort(1)[0][5], rows)
