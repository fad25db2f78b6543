"""A CPU generator that is given to an operator of the device draws what it draws on CPU."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt.errors import UnsupportedError
from torch_pjrt.observe.counters import counters

Draw = Callable[[str, torch.Generator], Any]


def zeros(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype).to(device)


def chances(device: str) -> torch.Tensor:
    return torch.linspace(0.1, 0.9, 20).reshape(4, 5).to(device)


DRAWS: dict[str, Draw] = {
    "randn": lambda d, g: torch.randn(20, generator=g, device=d),
    "randn, complex": lambda d, g: torch.randn(9, generator=g, device=d, dtype=torch.complex64),
    "randn, bfloat16": lambda d, g: torch.randn(20, generator=g, device=d, dtype=torch.bfloat16),
    "randn, out": lambda d, g: torch.randn(3, generator=g, out=zeros(d, 3)),
    "rand": lambda d, g: torch.rand(3, 4, generator=g, device=d, dtype=torch.float64),
    "randint": lambda d, g: torch.randint(3, 10, (5,), generator=g, device=d),
    "randperm": lambda d, g: torch.randperm(9, generator=g, device=d),
    "normal of numbers": lambda d, g: torch.normal(0.0, 1.0, (4,), generator=g, device=d),
    "normal of tensors": lambda d, g: torch.normal(chances(d), chances(d), generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(chances(d), generator=g),
    "multinomial": lambda d, g: torch.multinomial(chances(d), 3, generator=g),
    "poisson": lambda d, g: torch.poisson(chances(d) * 9, generator=g),
    "binomial": lambda d, g: torch.binomial(chances(d) * 0 + 9, chances(d), generator=g),
    "gamma": lambda d, g: torch._standard_gamma(chances(d), generator=g),  # type: ignore[attr-defined]
    "normal_": lambda d, g: zeros(d, 40).normal_(2, 3, generator=g),
    "normal_ of channels last": lambda d, g: torch.empty(
        2, 3, 4, 4, device=d, memory_format=torch.channels_last
    ).normal_(generator=g),
    "uniform_ of a view": lambda d, g: zeros(d, 6, 40)[:, ::2].t().uniform_(generator=g),
    "exponential_": lambda d, g: zeros(d, 7).exponential_(generator=g),
    "cauchy_": lambda d, g: zeros(d, 7).cauchy_(generator=g),
    "log_normal_": lambda d, g: zeros(d, 7).log_normal_(generator=g),
    "geometric_": lambda d, g: zeros(d, 7).geometric_(0.3, generator=g),
    "random_": lambda d, g: zeros(d, 7, dtype=torch.int64).random_(2, 9, generator=g),
    "bernoulli_": lambda d, g: zeros(d, 4, 5).bernoulli_(chances(d), generator=g),
    "nothing": lambda d, g: zeros(d, 0).normal_(generator=g),
    "an initialization": lambda d, g: nn.init.trunc_normal_(zeros(d, 4, 5), generator=g),
}


def drawn(draw: Draw, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    first = draw(device, generator)
    assert first.device.type == device
    return torch.stack([first.cpu(), draw(device, generator).cpu()]), generator.get_state()


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_and_the_generators_state_after_are_those_of_the_cpu(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, our_state = drawn(DRAWS[name], "pjrt")
    theirs, their_state = drawn(DRAWS[name], "cpu")

    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)
    assert torch.equal(our_state, their_state)


def test_the_view_alone_is_written() -> None:
    x = zeros("pjrt", 4, 4)

    x[:, 1].normal_(generator=torch.Generator().manual_seed(0))

    assert (x.cpu() != 0).sum(0).tolist() == [0, 4, 0, 0]


def test_numbers_of_the_device_itself_go_on_as_if_nothing_had_been_drawn() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3, device="pjrt").tolist()
    torch.manual_seed(0)

    torch.randn(5, device="pjrt", generator=torch.Generator())

    assert torch.rand(3, device="pjrt").tolist() == expected


def test_filling_a_tensor_reads_nothing() -> None:
    x = torch.empty(50, device="pjrt")
    before = counters.downloads, counters.programs_run

    x.normal_(generator=torch.Generator())

    assert (counters.downloads, counters.programs_run) == before


def test_refused_numbers_raise_as_on_cpu() -> None:
    for device in ("cpu", "pjrt"):
        with pytest.raises(RuntimeError, match="exponential_ expects lambda > 0"):
            zeros(device, 3).exponential_(-1, generator=torch.Generator())
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            zeros(device, 1).expand(4).normal_(generator=torch.Generator())


@pytest.mark.parametrize("device", ["pjrt", "pjrt:0", 0])
def test_a_generator_of_the_device_is_refused_with_what_to_do(device: Any) -> None:
    with pytest.raises(UnsupportedError, match="give its random operators a CPU generator"):
        torch.Generator(device=device)
    with pytest.raises(UnsupportedError, match="give its random operators a CPU generator"):
        torch.Generator(device)


def test_other_generators_are_pytorchs_own() -> None:
    generator = torch.Generator("cpu")

    assert type(generator) is type(torch.default_generator)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert not isinstance(3, torch.Generator)
    assert issubclass(torch._C.Generator, torch.Generator)
    for copied in (pickle.loads(pickle.dumps(generator)), copy.copy(generator)):
        assert torch.equal(copied.get_state(), generator.get_state())
    assert pickle.loads(pickle.dumps(torch.Generator)) is torch.Generator
    with pytest.raises(RuntimeError, match="Expected one of cpu"):
        torch.Generator("nonsense")


def test_a_users_subclass_is_a_class_of_its_own() -> None:
    class Mine(torch.Generator):
        def twice(self) -> list[float]:
            return [torch.rand((), generator=self).item() for _ in range(2)]

    mine = Mine()

    assert isinstance(mine, Mine)
    assert isinstance(mine, torch.Generator)
    assert not isinstance(torch.Generator(), Mine)
    assert len(mine.twice()) == 2


def test_a_loader_shuffles_with_a_generator_as_on_cpu_where_pjrt_is_the_default_device() -> None:
    def order() -> list[int]:
        generator = torch.Generator().manual_seed(1)
        loader = torch.utils.data.DataLoader(range(10), shuffle=True, generator=generator)  # type: ignore[arg-type]
        return [int(x) for x in loader]

    expected = order()
    with torch.device("pjrt"):
        assert order() == expected
