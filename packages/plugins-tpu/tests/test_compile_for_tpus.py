"""Training steps are compiled for TPUs that are not here, with memory, collectives and limits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import DeviceError, DeviceFull
from torch_pjrt_tpu import aot, probe
from torch_pjrt_tpu.aot import chips_of

EXAMPLES = Path(__file__).parents[3] / "examples"
HAS_LIBTPU = probe.libtpu()

needs_libtpu = pytest.mark.skipif(
    not HAS_LIBTPU, reason="libtpu is not installed (`hatch run aot:run` does)"
)


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is installed")
def test_without_libtpu_the_error_says_what_to_install() -> None:
    with pytest.raises(DeviceError, match=r"takes libtpu\.\n  hint: pip install .torch-pjrt-tpu"):
        chips_of("v5e:2x4")


def test_names_of_other_devices_mean_nothing_to_it() -> None:
    assert chips_of("h100") is None


def test_library_that_another_process_uses_is_not_taken_for_an_unknown_topology(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def locked(*_: Any) -> Any:
        raise RuntimeError("ABORTED: accessing libtpu multi-process lockfile")

    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(probe, "libtpu", lambda: True)
    monkeypatch.setattr(aot, "compile_only_chips", locked)

    with pytest.raises(DeviceError, match=r"Another process uses libtpu[^$]*hint: wait"):
        chips_of("v5e:2x4")


@needs_libtpu
@pytest.mark.parametrize("target", aot.EXAMPLES)
def test_a_chip_is_one_device(target: str) -> None:
    n_chips = math.prod(int(side) for side in target.partition(":")[2].split("x"))

    chips = chips_of(target)

    assert chips is not None
    assert len(chips) == n_chips


@needs_libtpu
def test_topology_that_does_not_exist_is_an_error_with_examples() -> None:
    with pytest.raises(
        DeviceError, match=r"knows no topology `v9z:2x4`[^$]*expected: one like v4:2x2x1"
    ):
        torch_pjrt.compile_for("v9z:2x4", torch.sin, torch.ones(2))


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    for name in ("sklearn", "tqdm"):
        if find_spec(name) is None:
            pytest.skip(f"the demos need {name}")
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    yield __import__


def gpt(examples: Any) -> tuple[Any, list[torch.Tensor]]:
    demo = examples("train_gpt")
    model = demo.build_model().to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = demo.loss_of(model, (tokens, targets), "pjrt")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    tokens = torch.empty(demo.BATCH, demo.LENGTH, dtype=torch.int64, device="meta")
    return step, [tokens, tokens]


def resnet(examples: Any) -> tuple[Any, list[torch.Tensor]]:
    demo = examples("train_digits")
    model = demo.build_model().to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = demo.loss_of(model, (images, labels), "pjrt")
        loss.backward()
        optimizer.step()
        return loss.detach()

    images = torch.empty(demo.BATCH, 1, 8, 8, device="meta")
    return step, [images, torch.empty(demo.BATCH, dtype=torch.int64, device="meta")]


@needs_libtpu
@pytest.mark.parametrize("demo", [gpt, resnet])
@pytest.mark.parametrize("sharded", [False, True])
def test_training_step_of_a_demo_compiles_for_a_topology(
    examples: Any, demo: Any, sharded: bool
) -> None:
    step, inputs = demo(examples)

    found = torch_pjrt.compile_for("v5e:2x4", step, *inputs, sharded=sharded)

    assert (found.chip, found.n_chips) == ("TPU v5 lite", 8 if sharded else 1)
    assert ("all-reduce" in found.collectives) is sharded
    assert found.flops is not None
    assert found.reused_bytes > 0.6 * found.output_bytes  # the rest are gradients


@needs_libtpu
def test_program_that_no_chip_has_room_for_is_refused_by_the_compiler() -> None:
    rows = torch.empty(1 << 18, 8, device="meta")

    with pytest.raises(DeviceFull, match=r"than a chip of `v5e:2x4` has[^$]*HBM"):
        torch_pjrt.compile_for("v5e:2x4", lambda x: x @ x.T, rows)


@needs_libtpu
def test_64_bit_types_are_real_there() -> None:
    found = torch_pjrt.compile_for("v5e:2x4", lambda x: x.cumsum(0), torch.arange(8))

    assert "i64" in found.stablehlo
