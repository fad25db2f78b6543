"""Training that knows of rounding goes on the device as on the CPU, without a fallback."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.ao.quantization import (
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)

from torch_pjrt.extend import counters

pytestmark = pytest.mark.filterwarnings("ignore")  # torchao's own, of what it has deprecated
F = torch.nn.functional
INT8 = {"quant_min": -128, "quant_max": 127, "dtype": torch.qint8}


class Observed(torch.nn.Module):
    """PyTorch's fused observers: an input with one range, a weight with one for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 16)
        self.of_input = FusedMovingAvgObsFakeQuantize(observer=MovingAverageMinMaxObserver, **INT8)
        self.of_weight = FusedMovingAvgObsFakeQuantize(
            observer=MovingAveragePerChannelMinMaxObserver,
            qscheme=torch.per_channel_symmetric,
            ch_axis=0,
            **INT8,
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.of_input(x), self.of_weight(self.linear.weight), self.linear.bias)


class Learned(torch.nn.Module):
    """Scales that are learned, as in LSQ."""

    zero: Tensor
    zeros: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 16)
        self.scale = torch.nn.Parameter(torch.full((1,), 0.05))
        self.scales = torch.nn.Parameter(torch.full((16,), 0.004))
        self.register_buffer("zero", torch.zeros(1))
        self.register_buffer("zeros", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        x = torch._fake_quantize_learnable_per_tensor_affine(
            x, self.scale, self.zero, -128, 127, 0.1
        )
        weight = torch._fake_quantize_learnable_per_channel_affine(
            self.linear.weight, self.scales, self.zeros, 0, -8, 7, 0.1
        )
        return F.linear(x, weight, self.linear.bias)


def by_torchao() -> torch.nn.Module:
    pytest.importorskip("torchao")
    from torchao.quantization import quantize_  # pyright: ignore[reportMissingImports]
    from torchao.quantization.qat import (  # pyright: ignore[reportMissingImports]
        IntxFakeQuantizeConfig,
        QATConfig,
    )

    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
    inputs = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    four: Any = torch.int4  # pyright: ignore[reportAttributeAccessIssue]
    weights = IntxFakeQuantizeConfig(four, group_size=16)
    quantize_(model, QATConfig(activation_config=inputs, weight_config=weights, step="prepare"))
    return model


def by_pt2e() -> torch.nn.Module:
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import (  # pyright: ignore[reportMissingImports]
        prepare_qat_pt2e,
    )

    from torch_pjrt_quant import PjrtQuantizer

    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
    program: Any = torch.export.export(model, (torch.randn(16, 32),), strict=False).module()
    return prepare_qat_pt2e(program, PjrtQuantizer(training=True))


def by_torchaos_float8(recipe: str) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        pytest.importorskip("torchao")
        from torchao.float8 import (  # pyright: ignore[reportMissingImports]
            Float8LinearConfig,
            convert_to_float8_training,
        )

        model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 16))
        config = Float8LinearConfig.from_recipe_name(recipe)
        return convert_to_float8_training(model, config=config)

    return make


WAYS: dict[str, Callable[[], torch.nn.Module]] = {
    "fused observers": Observed,
    "learned scales": Learned,
    "torchao's QAT": by_torchao,
    "PT2E": by_pt2e,
    "torchao's float8, tensors": by_torchaos_float8("tensorwise"),
    "torchao's float8, rows": by_torchaos_float8("rowwise"),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("way", WAYS)
def test_losses_and_weights_are_those_of_the_cpu(way):
    here = WAYS[way]()
    there = copy.deepcopy(here)
    batches = [torch.randn(16, 32) * (1 + i) for i in range(4)]
    before = counters.fallbacks.total()

    def trained(model: torch.nn.Module, device: str) -> tuple[Tensor, dict[str, Tensor]]:
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for x in batches:
            loss = (model(x.to(device)) - 0.3).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        state = {n: t.detach().cpu() for n, t in model.state_dict().items()}
        return torch.stack(losses).cpu(), state

    wanted, state = trained(here, "cpu")
    got, ours = trained(there, "pjrt")

    assert counters.fallbacks.total() == before
    # A number whose last bit differs may round to the next level.
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    assert {*state} == {*ours}
    for name, tensor in state.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-2, atol=2e-3, msg=name)


def test_what_pt2e_has_trained_becomes_integers():
    from torch_pjrt_quant import lower_pt2e

    prepared: Any = by_pt2e()
    import torchao.quantization.pt2e as pt2e  # pyright: ignore[reportMissingImports]
    from torchao.quantization.pt2e.quantize_pt2e import (  # pyright: ignore[reportMissingImports]
        convert_pt2e,
    )

    x = torch.randn(16, 32)
    trained = prepared(x)
    pt2e.move_exported_model_to_eval(prepared)
    converted = convert_pt2e(prepared)
    wanted = converted(x)

    small = lower_pt2e(converted)

    schemas = [getattr(n.target, "_schema", None) for n in small.graph.nodes]
    assert [s.name for s in schemas if s].count("torch_pjrt_quant::product_int8") == 2
    torch.testing.assert_close(small.to("pjrt")(x.to("pjrt")).cpu(), wanted, rtol=1e-4, atol=1e-5)
    # Fused observers and `convert_pt2e` choose symmetric scales that differ by a part in 256.
    assert (wanted - trained).norm() / trained.norm() < 0.02
