"""Sizes that vary are padded up to a few, so that few programs serve them all."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import torch_pjrt
import torch_pjrt_dynamo
from torch_pjrt.errors import SettingError

Tensor = torch.Tensor
Model = TypeVar("Model", bound=nn.Module)
# What `torch.compile` takes: its annotation knows fewer kinds of values.
Options = dict[str, Any]


class Reader(nn.Module):
    """Embedding with positions, self-attention, a mean over the sequence."""

    def __init__(self, longest: int = 512, *, is_causal: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.randn(longest, 8))
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.is_causal = is_causal

    def hidden(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=self.is_causal)
        return x + self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.hidden(tokens).mean(1)


class Tower(nn.Module):
    """Linear layers and layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def twins(model: Model) -> tuple[Model, Model]:
    """The same model on the host and on the device."""
    return model, copy.deepcopy(model).to("pjrt")


# All small ones, and those on both sides of a bucket's end.
LENGTHS = [*range(1, 34), *(m + d for m in (64, 128, 256) for d in (-1, 0, 1, 20)), 511, 512]


def tokens(n: int, batch: int = 2) -> Tensor:
    return torch.randint(0, 11, (batch, n), generator=torch.Generator().manual_seed(n))


def close(saw: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(saw.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)


def test_lengths_from_1_to_512_take_10_programs(programs: Any) -> None:
    torch.manual_seed(0)
    host, model = twins(Reader())
    compiled = torch.compile(model, backend="pjrt")

    with torch.no_grad():
        for n in LENGTHS:
            close(compiled(tokens(n).to("pjrt")), host(tokens(n)))

    assert programs.compiled <= 10


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_take_no_program_for_each_length(programs: Any, is_causal: bool) -> None:
    torch.manual_seed(0)
    host, model = twins(Reader(is_causal=is_causal))
    compiled = torch.compile(model, backend="pjrt", dynamic=True)

    for n in (5, 8, 6, 7, 12, 16, 9):
        compiled(tokens(n).to("pjrt")).square().mean().backward()
        host(tokens(n)).square().mean().backward()
        for mine, wanted in zip(model.parameters(), host.parameters(), strict=True):
            assert mine.grad is not None and wanted.grad is not None
            close(mine.grad, wanted.grad)
        model.zero_grad()
        host.zero_grad()

    assert programs.compiled <= 2, "one for up to 8, one for up to 16"


def test_batches_of_any_size_train(programs: Any) -> None:
    torch.manual_seed(0)
    host, model = twins(Tower())
    losses = []
    for module, device in ((host, "cpu"), (model, "pjrt")):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        loss_of = lambda x, y, module=module: F.mse_loss(module(x), y)  # noqa: E731
        if device == "pjrt":
            loss_of = torch.compile(loss_of, backend="pjrt", dynamic=True)
            programs.forget()
        seen = []
        for n in (20, 32, 17, 25, 31, 18, 29):
            x = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))
            loss = loss_of(x.to(device), (x[:, :3] ** 2).to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.detach())
        losses.append(torch.stack(seen))

    assert programs.compiled <= 3, "a step is one program: the first one, the others, the stack"
    close(losses[1], losses[0])


def test_a_result_whose_size_varies_has_its_true_size(programs: Any) -> None:
    torch.manual_seed(0)
    host, model = twins(Reader())
    compiled = torch.compile(model.hidden, backend="pjrt", dynamic=True)

    with torch.no_grad():
        for n in (5, 6, 7, 8):
            saw = compiled(tokens(n, 3).to("pjrt"))
            assert saw.shape == (3, n, 8)
            assert saw.stride() == (8 * n, 8, 1)
            close(saw, host.hidden(tokens(n, 3)))

    assert programs.compiled == 1, "it is cut where it is read"


def test_such_a_result_goes_on_without_a_compiler() -> None:
    torch.manual_seed(0)
    host, model = twins(Reader())
    compiled = torch.compile(model.hidden, backend="pjrt", dynamic=True)

    with torch.no_grad():
        for n in (5, 7):
            x, y = compiled(tokens(n, 3).to("pjrt")), host.hidden(tokens(n, 3))
            close(x.transpose(0, 1).flatten(0, 1), y.transpose(0, 1).flatten(0, 1))
            close(x[1:, ::2] + 1, y[1:, ::2] + 1)
            close(x.softmax(1).sum((0, 1)), y.softmax(1).sum((0, 1)))
            x[:, 1], y[:, 1] = 3.0, 3.0
            close(x, y)


def test_tensors_of_the_host_are_padded_too(programs: Any) -> None:
    torch.manual_seed(0)
    model = Reader()
    compiled = torch.compile(model, backend="pjrt", dynamic=True)

    for n in (5, 6, 7, 8):
        with torch.no_grad():
            close(compiled(tokens(n)), model(tokens(n)))

    assert programs.compiled == 1


def counted(x: Tensor, seen: Tensor, n: Tensor) -> Tensor:
    seen += x.sum(0)
    n += 1
    return x * 2 + seen


def counted_within(x: Tensor, seen: Tensor, n: Tensor) -> Tensor:
    seen[1:].add_(x.sum(0)[1:])
    return x.sum(0) * n


def doubled_in_place(x: Tensor, seen: Tensor, n: Tensor) -> Tensor:
    return x.mul_(2).sum(0) + seen + n


def viewed_too(x: Tensor, seen: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    n += 1
    return x[1:], seen[:2] + n


@pytest.mark.parametrize(
    ("fn", "in_buckets"),
    [(counted, True), (counted_within, True), (doubled_in_place, False), (viewed_too, False)],
)
def test_arguments_are_written_to(fn: Any, in_buckets: bool) -> None:
    compiled = torch.compile(fn, backend="pjrt")
    written = [torch.zeros(3), torch.zeros(())]
    mine = [x.to("pjrt") for x in written]

    for n in (5, 6, 8, 12, 7):
        x = torch.randn(n, 3)
        there = x.to("pjrt")
        torch._dynamo.mark_dynamic(there, 0)
        saw, wanted = compiled(there, *mine), fn(x, *written)
        for a, b in zip((saw, there, *mine), (wanted, x, *written), strict=True):
            torch.testing.assert_close(tree_map(lambda t: t.cpu(), a), b)

    assert bool(torch_pjrt_dynamo.shapes()[-1].buckets) == in_buckets


def test_buckets_can_be_given(programs: Any) -> None:
    host, model = twins(Tower())
    compiled = torch.compile(model, backend="pjrt", dynamic=True, options=Options(buckets=[10, 40]))

    with torch.no_grad():
        for n in (3, 10, 7, 11, 40, 25):
            x = torch.randn(n, 6)
            close(compiled(x.to("pjrt")), host(x))

    assert programs.compiled == 2
    assert torch_pjrt_dynamo.shapes()[-1].buckets == {(10,), (40,)}


def test_a_size_above_all_buckets_is_a_program_of_its_own(programs: Any) -> None:
    host, model = twins(Tower())
    compiled = torch.compile(model, backend="pjrt", dynamic=True, options=Options(buckets=[4]))

    with torch.no_grad():
        for n in (3, 5, 6):
            x = torch.randn(n, 6)
            close(compiled(x.to("pjrt")), host(x))

    assert programs.compiled == 3
    assert len(torch_pjrt_dynamo.shapes()[-1].exact) == 2


def test_without_buckets_each_size_is_a_program(programs: Any) -> None:
    _, model = twins(Tower())
    compiled = torch.compile(model, backend="pjrt", dynamic=True, options={"buckets": False})

    with torch.no_grad():
        for n in (5, 6, 7):
            compiled(torch.randn(n, 6).to("pjrt")).cpu()

    assert programs.compiled == 3


@pytest.mark.parametrize("buckets", [[], [0], "powers", [2.5], 3])
def test_what_is_no_list_of_sizes_is_refused(buckets: Any) -> None:
    compiled = torch.compile(torch.sin, backend="pjrt", options={"buckets": buckets})

    with pytest.raises(Exception, match="`buckets` cannot be that") as caught:
        compiled(torch.ones(2, device="pjrt"))

    assert isinstance(caught.value, SettingError) or "SettingError" in str(caught.value)


def test_random_numbers_of_a_size_that_varies_are_those_of_its_own_program() -> None:
    plain = lambda x: F.dropout(x, 0.5).sum(1)  # noqa: E731
    compiled = torch.compile(plain, backend="pjrt", dynamic=True)

    for n in (5, 6):
        x = torch.ones(3, n, device="pjrt")
        torch.manual_seed(n)
        wanted = plain(x).tolist()
        torch.manual_seed(n)
        assert compiled(x).tolist() == wanted

    [reason] = [s.reason for s in torch_pjrt_dynamo.shapes()[-1:]]
    assert reason is not None
    assert "dropout" in reason
    assert __file__ in reason


def test_what_is_not_known_to_be_the_same_is_done_on_true_sizes() -> None:
    plain = lambda x: x.sort(1).values[:, ::2].sum(1)  # noqa: E731
    compiled = torch.compile(plain, backend="pjrt", dynamic=True)

    for n in (5, 6, 7):
        x = torch.randn(3, n)
        close(compiled(x.to("pjrt")), plain(x))

    assert "aten.sort" in str(torch_pjrt_dynamo.shapes()[-1])


def test_halves_are_divided_by_sizes_that_are_no_halves() -> None:
    plain = lambda x: (x / x.shape[0], x.sum() / x.shape[0], x.mean())  # noqa: E731
    compiled = torch.compile(plain, backend="pjrt", dynamic=True)

    for n in (70_000, 70_001):
        x = torch.full((n,), 0.5, dtype=torch.float16)
        for saw, wanted in zip(compiled(x.to("pjrt")), plain(x), strict=True):
            close(saw, wanted)


def test_an_argument_that_is_written_to_is_not_padded() -> None:
    def doubled(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sum()

    compiled = torch.compile(doubled, backend="pjrt", dynamic=True)

    for n in (5, 6):
        x = torch.ones(n, device="pjrt")
        assert compiled(x).item() == 2 * n
        assert x.tolist() == [2.0] * n


def test_what_a_captured_step_writes_to_is_padded_as_it_is_then() -> None:
    state = torch.zeros(5, device="pjrt")
    step = torch_pjrt.capture(lambda: state.add_(1))
    compiled = torch.compile(lambda x: x.sum(), backend="pjrt", dynamic=True)

    for i in range(12):
        step()
        assert compiled(state).item() == 5 * (i + 1)

    assert step.replays > 3


def test_a_captured_step_is_not_padded() -> None:
    compiled = torch.compile(lambda x: (x * 2).sum(), backend="pjrt", dynamic=True)
    step = torch_pjrt.capture(compiled)

    for n in (5, 6):
        for i in range(8):
            x = torch.arange(float(n)) + i
            assert float(step(x.to("pjrt"))) == 2 * float(x.sum())

    assert step.replays > 0


def test_sizes_are_numbers_of_the_host_where_the_device_is_the_default_one() -> None:
    total = torch.compile(lambda x: x.relu().sum(0), dynamic=True)

    with torch.device("pjrt"):
        sizes = (1003, 1005)  # whose counts nobody made before
        found = [total(torch.ones(n, 2)).tolist() for n in sizes]

    assert found == [[1003, 1003], [1005, 1005]]
