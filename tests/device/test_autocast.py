"""`torch.autocast("pjrt")` is PyTorch's: nesting, the cache of parameters, custom functions, training."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

DEVICES = ("pjrt", "cpu")


class ConvNet(nn.Module):
    """Images of 8 by 8 to four classes, with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(8 * 4 * 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).flatten(1))


class Transformer(nn.Module):
    """Sequences of 8 tokens of 16 to four classes, with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 16, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.embed(x))).mean(1)[:, :4]


def test_bfloat16_is_the_default_in_every_thread() -> None:
    seen: list[torch.dtype] = []
    x = torch.ones(2, 2, device="pjrt")

    def use() -> None:
        with torch.autocast("pjrt"):
            seen.append((x @ x).dtype)

    use()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()

    assert seen == [torch.bfloat16, torch.bfloat16]
    assert torch.get_autocast_dtype("pjrt") is torch.bfloat16


def test_autocast_within_autocast_may_turn_it_off_or_change_the_dtype() -> None:
    x = torch.ones(2, 2, device="pjrt")

    with torch.autocast("pjrt", dtype=torch.bfloat16):
        with torch.autocast("pjrt", enabled=False):
            off = x @ x
        with torch.autocast("pjrt", dtype=torch.float16):
            half = x @ x
        lower = x @ x
        assert torch.is_autocast_enabled("pjrt")

    assert (off.dtype, half.dtype, lower.dtype) == (torch.float32, torch.float16, torch.bfloat16)
    assert (x @ x).dtype is torch.float32
    assert not torch.is_autocast_enabled("pjrt")


def test_tensors_of_other_devices_are_left_alone() -> None:
    x = torch.ones(2, 2)

    with torch.autocast("pjrt"):
        assert (x @ x).dtype is torch.float32
    with torch.autocast("cpu"):
        assert (x.to("pjrt") @ x.to("pjrt")).dtype is torch.float32


def test_float64_and_integers_are_never_cast() -> None:
    x = torch.ones(2, 2, device="pjrt", dtype=torch.float64)

    with torch.autocast("pjrt"):
        assert (x @ x).dtype is torch.float64
        assert (x.long() @ x.long()).dtype is torch.int64


@pytest.mark.parametrize("cache_enabled", [True, False])
def test_a_parameter_is_cast_once_unless_the_cache_is_off(cache_enabled: bool) -> None:
    for device in DEVICES:
        w = torch.ones(2, 2, device=device, requires_grad=True)
        x = torch.ones(2, 2, device=device)
        with torch.autocast(device, torch.bfloat16, cache_enabled=cache_enabled):
            first, second = ((x @ w).grad_fn.next_functions[1][0] for _ in range(2))  # type: ignore[union-attr]
        assert (first is second) is cache_enabled


def test_a_parameter_that_has_changed_is_cast_anew() -> None:
    w = torch.ones(2, 2, device="pjrt", requires_grad=True)
    x = torch.ones(2, 2, device="pjrt")

    with torch.autocast("pjrt"):
        first = (x @ w).sum()
        with torch.no_grad():
            w += 1
        assert (first.item(), (x @ w).sum().item()) == (8.0, 16.0)


def test_what_was_cast_without_gradients_takes_none_from_later_uses() -> None:
    w = torch.ones(2, 2, device="pjrt", requires_grad=True)

    with torch.autocast("pjrt"):
        with torch.no_grad():
            _ = w @ w
        (w @ w).sum().backward()

    assert w.grad is not None


class _Doubled(torch.autograd.Function):
    seen: ClassVar[list[Any]] = []

    @staticmethod
    @torch.amp.custom_fwd(device_type="pjrt", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _Doubled.seen.append((x.dtype, torch.is_autocast_enabled("pjrt")))
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="pjrt")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        _Doubled.seen.append((grad.dtype, torch.is_autocast_enabled("pjrt")))
        return grad


def test_custom_functions_may_refuse_autocast() -> None:
    x = torch.ones(2, 2, device="pjrt", dtype=torch.bfloat16, requires_grad=True)
    _Doubled.seen.clear()

    with torch.autocast("pjrt"):
        y = _Doubled.apply(x)
    assert isinstance(y, torch.Tensor)
    y.sum().backward()

    assert _Doubled.seen == [(torch.float32, False), (torch.float32, False)]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", [ConvNet, Transformer])
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_training_follows_the_cpus_losses(kind: type[nn.Module], lower: torch.dtype) -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        model = kind().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        seen = []
        for step in range(8):
            generator = torch.Generator().manual_seed(step % 2)
            if kind is ConvNet:
                x = torch.randn(16, 3, 8, 8, generator=generator)
            else:
                x = torch.randint(16, (16, 8), generator=generator)
            labels = torch.randint(4, (16,), generator=generator).to(device)
            with torch.autocast(device, dtype=lower):
                loss = F.cross_entropy(model(x.to(device)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
        return torch.stack(seen).tolist()

    ours, theirs = map(losses, DEVICES)
    assert ours[-1] < 0.9 * ours[0]
    # Sums in 16 bits are rounded in another order: a few units in the last place.
    assert ours == pytest.approx(theirs, rel=torch.finfo(lower).eps * 4)


def test_recurrent_layers_and_the_fast_path_of_transformers_run_in_the_lower_dtype() -> None:
    x = torch.ones(1, 3, 8, device="pjrt")
    recurrent = nn.LSTM(8, 8, batch_first=True).to("pjrt")
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to("pjrt").eval()

    with torch.autocast("pjrt"), torch.no_grad():
        results = [*recurrent(x)[1], layer(x)]

    assert {r.dtype for r in results} == {torch.bfloat16}
    assert all(r.isfinite().all() for r in results)


def test_batched_calls_are_cast_as_others() -> None:
    x, w = torch.ones(2, 3, 4, device="pjrt"), torch.ones(4, 5, device="pjrt")

    with torch.autocast("pjrt"):
        assert torch.vmap(torch.mm, in_dims=(0, None))(x, w).dtype is torch.bfloat16


def test_an_eager_step_with_autocast_is_one_program() -> None:
    import torch_pjrt
    from torch_pjrt.observe.counters import counters

    model = ConvNet().to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.ones(4, 3, 8, 8).to("pjrt"), torch.zeros(4, dtype=torch.long).to("pjrt")

    def step() -> None:
        with torch.autocast("pjrt"):
            loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    torch_pjrt.sync()
    for _ in range(3):
        step()
    before = counters.programs_run, counters.programs_compiled
    for _ in range(3):
        step()

    assert counters.programs_run - before[0] == 3
    assert counters.programs_compiled == before[1]
