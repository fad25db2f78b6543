"""torchao's `quantize_` gives layers of ours to modules on the device, and its own to others."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt_quant import QuantizedLinear, from_torchao_
from torch_pjrt_quant.with_torchao import CONFIGS as CONFIGS_HERE
from torch_pjrt_quant.with_torchao import take_part

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
    ),
    pytest.mark.filterwarnings("ignore"),  # torchao's own, of what it has deprecated
]


@pytest.fixture(scope="module")
def ao() -> Any:
    take_part()  # as the plugin does
    import torchao.quantization as ao  # pyright: ignore[reportMissingImports]

    return ao


#   configuration of torchao's, its options, kind of our layer, error relative to float
CONFIGS = [
    ("Int8WeightOnlyConfig", {}, "Int8Linear", 0.01),
    ("Int8DynamicActivationInt8WeightConfig", {}, "Int8Linear", 0.02),
    ("Int4WeightOnlyConfig", {"group_size": 32}, "Int4Linear", 0.12),
    ("Float8WeightOnlyConfig", {}, "Float8Linear", 0.04),
    ("Float8DynamicActivationFloat8WeightConfig", {}, "Float8Linear", 0.06),
]


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)]
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize(("name", "options", "kind", "limit"), CONFIGS)
def test_its_configurations_work_without_a_read(ao, name, options, kind, limit):
    quantized, x = model().to("pjrt"), torch.randn(3, 64)

    ao.quantize_(quantized, getattr(ao, name)(**options))
    given = x.to("pjrt")
    torch_pjrt.sync()
    before = counters.syncs.total(), counters.fallbacks.total()
    eager = quantized(given)
    after = counters.syncs.total(), counters.fallbacks.total()
    compiled = torch.compile(quantized, backend="pjrt", fullgraph=True)(given)

    assert [type(m).__name__ for m in quantized] == [kind, "GELU", kind]
    assert before == after
    wanted = model()(x)
    assert (eager.cpu() - wanted).norm() / wanted.norm() < limit
    torch.testing.assert_close(compiled.cpu(), eager.cpu(), rtol=1e-3, atol=1e-3)


#   configuration, a granularity by name and its options, kind of our layer or None for torchao's own way
GRANULARITIES = [
    ("Int8WeightOnlyConfig", "PerRow", (), "Int8Linear"),
    ("Int8WeightOnlyConfig", "PerGroup", (32,), None),
    ("Int8DynamicActivationInt8WeightConfig", "PerTensor", (), None),
    ("Float8WeightOnlyConfig", "PerTensor", (), "Float8Linear"),
    ("Float8WeightOnlyConfig", "PerGroup", (32,), None),
    ("Float8DynamicActivationFloat8WeightConfig", "PerRow", (), "Float8Linear"),
    ("Float8DynamicActivationFloat8WeightConfig", "PerTensor", (), "Float8Linear"),
    ("IntxWeightOnlyConfig", "PerAxis", (0,), "Int8Linear"),
    ("IntxWeightOnlyConfig", "PerGroup", (32,), None),  # of int8
]


@pytest.mark.parametrize(("name", "granularity", "options", "kind"), GRANULARITIES)
def test_granularities_that_our_layers_lack_go_its_own_way(ao, name, granularity, options, kind):
    config = getattr(ao, name)(granularity=getattr(ao, granularity)(*options))

    ours = CONFIGS_HERE[name](config)

    assert (None if ours is None else type(ours).__name__ + "Linear") == kind


def test_blocks_of_float8_go_its_own_way(ao):
    blocks = [ao.PerBlock([1, 128]), ao.PerBlock([128, 128])]
    config = ao.Float8DynamicActivationFloat8WeightConfig(granularity=blocks)

    assert CONFIGS_HERE["Float8DynamicActivationFloat8WeightConfig"](config) is None


@pytest.mark.parametrize("name", CONFIGS_HERE)
def test_a_configuration_that_lacks_options_is_none_that_raises(name):
    CONFIGS_HERE[name](object())


def test_modules_on_the_cpu_stay_its_own(ao):
    quantized = model()

    ao.quantize_(quantized, ao.Int8WeightOnlyConfig())

    assert not any(isinstance(m, QuantizedLinear) for m in quantized)


@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_what_it_has_quantized_on_the_cpu_is_taken_over(ao, name):
    quantized, x = model(), torch.randn(3, 64)
    ao.quantize_(quantized, getattr(ao, name)())
    wanted = quantized(x)

    from_torchao_(quantized).to("pjrt")

    assert all(isinstance(quantized[n], QuantizedLinear) for n in (0, 2))
    torch.testing.assert_close(quantized(x.to("pjrt")).cpu(), wanted, rtol=1e-3, atol=1e-3)
