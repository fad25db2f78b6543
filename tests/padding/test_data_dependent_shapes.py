"""Sizes that only values decide are the CPU's, and a loop that meets a hundred of them compiles a handful."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fixture_types import Count
from sides import assert_same
from torch_pjrt.observe.counters import counters

Tensor = torch.Tensor
Compute = Callable[..., Any]

HANDFUL = 8
TIMES = 100

aten = torch.ops.aten
seed = torch.Generator().manual_seed(0)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


def flat(x: Any) -> list[Any]:
    return [i for part in x for i in flat(part)] if isinstance(x, (list, tuple)) else [x]


def on_device(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.to("pjrt")
    return type(x)(map(on_device, x)) if isinstance(x, (list, tuple)) else x


def assert_as_on_cpu(compute: Compute, *inputs: Any) -> None:
    """Values, dtypes, shapes; or the class and the text of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = compute(*inputs)
        except Exception as error:
            with pytest.raises(type(error)) as caught:
                for t in flat(compute(*on_device(inputs))):
                    t.cpu()
            assert str(caught.value).replace("pjrt:0", "cpu") == str(error)
            return
        got = compute(*on_device(inputs))
    assert len(flat(got)) == len(flat(expected))
    for ours, theirs in zip(flat(got), flat(expected), strict=True):
        if isinstance(theirs, Tensor):
            assert ours.is_contiguous() == theirs.is_contiguous()
            assert_same(ours + 0, theirs + 0)
        assert_same(ours, theirs)


x = torch.randn(4, 5, generator=seed)
cube = torch.randn(2, 3, 4, generator=seed)
few = torch.tensor([3, 1, 3, 0, 1, 3, 7])
rows = torch.tensor([[1, 2], [0, 5], [1, 2], [1, 1], [0, 5]])

MASKS = {
    "some": x > 0,
    "none": torch.zeros(4, 5, dtype=torch.bool),
    "all": torch.ones(4, 5, dtype=torch.bool),
    "of rows": torch.tensor([True, False, True, True]),
    "no row": torch.zeros(4, dtype=torch.bool),
    "of bytes": (x > 0).to(torch.uint8),
    "0-d": torch.tensor(True),
    "0-d, false": torch.tensor(False),
}


@pytest.mark.parametrize("mask", MASKS)
def test_reading_by_a_mask_is_as_on_cpu(mask: str) -> None:
    assert_as_on_cpu(lambda t, m: t[m], x, MASKS[mask])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("value", [2.5, torch.tensor(2.5), torch.arange(5.0)], ids=str)
def test_writing_by_a_mask_is_as_on_cpu(mask: str, value: Any) -> None:
    def write(t: Tensor, m: Tensor, v: Any) -> Tensor:
        t = t.clone()
        t[m] = v
        return t

    assert_as_on_cpu(write, x, MASKS[mask], value)


def test_what_a_mask_selected_is_written_elsewhere_as_on_cpu() -> None:
    def move(t: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        a, b = t.clone(), t.clone()
        a[m] = t[m] * 2
        b[m.flip(0)[: len(m)]] += 1
        return a, b

    assert_as_on_cpu(move, x, x > 0)


COLUMNS = torch.tensor([True, False, True, False, True])
MIXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mask, column": lambda t, m: t[m, 1],
    "mask, slice": lambda t, m: t[m, 1:3],
    "mask, negative column": lambda t, m: t[m, -1],
    "mask, none": lambda t, m: t[m, None],
    "mask, indices": lambda t, m: t[m, torch.tensor([0, 2, 4], device=t.device)],
    "mask, wrong number of indices": lambda t, m: t[m, torch.tensor([0, 2], device=t.device)],
    "slice, mask": lambda t, m: t[:, COLUMNS.to(t.device)],
    "mask, mask": lambda t, m: t[m, COLUMNS.to(t.device)],
    "wrong mask": lambda t, m: t[:, m],
    "mask of three dims": lambda t, m: t.view(4, 5, 1)[(t > 0)[:, :, None]],
    "mask of the last dims": lambda t, m: t.view(2, 2, 5)[:, (t > 0)[:2]],
    "mask of the CPU": lambda t, m: t[m.cpu()],
}


@pytest.mark.parametrize("form", MIXED)
def test_mask_beside_other_indices_is_as_on_cpu(form: str) -> None:
    assert_as_on_cpu(MIXED[form], x, MASKS["of rows"])


@pytest.mark.slow("rows")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (7,), (0,), (), (2, 0, 3)], ids=str)
def test_nonzero_is_as_on_cpu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    t = torch.randint(0, 3, shape, generator=seed).to(dtype)

    assert_as_on_cpu(torch.nonzero, t)
    assert_as_on_cpu(torch.argwhere, t)
    assert_as_on_cpu(lambda t: torch.nonzero(t, as_tuple=True), t)
    assert_as_on_cpu(torch.where, t)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_select_and_masked_scatter_are_as_on_cpu(dtype: torch.dtype) -> None:
    t = (x * 5).to(dtype)
    for mask in (x > 0, COLUMNS, torch.zeros(5, dtype=torch.bool), torch.tensor(True)):
        assert_as_on_cpu(torch.masked_select, t, mask)
        assert_as_on_cpu(torch.masked_select, t[0], mask)
        assert_as_on_cpu(lambda t, m: t.masked_scatter(m, t.masked_select(m) + t[0, 0]), t, mask)
    assert_as_on_cpu(torch.masked_select, t, t)
    assert_as_on_cpu(torch.masked_select, t, torch.ones(3, dtype=torch.bool))


@pytest.mark.slow("rows")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(4, 5), (20,), (1,), (0,), ()], ids=str)
def test_unique_is_as_on_cpu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    t = torch.randint(0, 6, shape, generator=seed).to(dtype)
    for inverse in (False, True):
        for counts in (False, True):
            options = {"return_inverse": inverse, "return_counts": counts}
            assert_as_on_cpu(lambda t, o=options: torch.unique(t, **o), t)
            assert_as_on_cpu(lambda t, o=options: torch.unique(t, sorted=False, **o), t)
            assert_as_on_cpu(lambda t, o=options: torch.unique_consecutive(t, **o), t)


def test_unique_keeps_each_nan_and_the_infinities() -> None:
    t = torch.tensor([torch.nan, 1.0, -torch.inf, torch.nan, 1.0, torch.inf])

    assert_as_on_cpu(lambda t: torch.unique(t, return_inverse=True, return_counts=True), t)
    assert_as_on_cpu(lambda t: torch.unique_consecutive(t, return_counts=True), t)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("dim", [0, 1, -1, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool], ids=str)
def test_unique_of_rows_is_as_on_cpu(dtype: torch.dtype, dim: int) -> None:
    for t in (rows.to(dtype), rows.t().to(dtype), torch.zeros(0, 3).to(dtype), cube.to(dtype)):
        options = {"dim": dim, "return_inverse": True, "return_counts": True}
        assert_as_on_cpu(lambda t, o=options: torch.unique(t, **o), t)
        assert_as_on_cpu(lambda t, o=options: torch.unique_consecutive(t, **o), t)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 2), (4,), (4, 1), (20, 2), (6, 3, 2)], ids=str)
def test_unique_of_rows_with_nan_is_as_on_cpu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Nan is neither less nor more there, so the order of rows depends on the steps of the sort."""
    drawn = torch.Generator().manual_seed(0)
    for share in (0.1, 0.3, 0.6, 1.0):
        t = torch.randint(0, 3, shape, generator=drawn).to(dtype)
        t[torch.rand(shape, generator=drawn) < share] = torch.nan
        for dim in range(len(shape)):
            options = {"dim": dim, "return_inverse": True, "return_counts": True}
            assert_as_on_cpu(lambda t, o=options: torch.unique(t, **o), t)


@pytest.mark.parametrize("repeats", [[2, 0, 3], [0, 0, 0], [1], [], [2, -1, 1]], ids=str)
def test_repeat_interleave_is_as_on_cpu(repeats: list[int]) -> None:
    n = torch.tensor(repeats, dtype=torch.int64)

    assert_as_on_cpu(torch.repeat_interleave, n)
    assert_as_on_cpu(torch.repeat_interleave, n.int())
    assert_as_on_cpu(torch.repeat_interleave, n.float())
    assert_as_on_cpu(lambda t, n: t.repeat_interleave(n), torch.arange(len(n)), n)
    assert_as_on_cpu(lambda t, n: t.repeat_interleave(n, dim=1), x[:, :3], n)
    if all(n >= 0 for n in repeats):
        total = sum(repeats)
        assert_as_on_cpu(
            lambda t, n: t.repeat_interleave(n, output_size=total), torch.arange(len(n)), n
        )


def test_bincount_is_as_on_cpu() -> None:
    for t in (few, few.int(), few.to(torch.uint8), few[:0], few - 1, few.float(), rows):
        assert_as_on_cpu(torch.bincount, t)
        assert_as_on_cpu(lambda t: torch.bincount(t, minlength=20), t)
        assert_as_on_cpu(lambda t: torch.bincount(t, minlength=-1), t)
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
            assert_as_on_cpu(
                lambda t, d=dtype: torch.bincount(t, torch.arange(len(t)).to(d).to(t.device)), t
            )
        assert_as_on_cpu(lambda t: torch.bincount(t, torch.ones(3).to(t.device)), t)


# What is computed from them.

ROWS = torch.tensor([True, False, True, True])
CHAINS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda y: y.sum(),
    "sum of rows": lambda y: y.sum(1),
    "sum of columns": lambda y: y.sum(0, keepdim=True),
    "mean": lambda y: y.mean(),
    "mean of columns": lambda y: y.mean(0),
    "mean of rows": lambda y: y.mean(-1, keepdim=True),
    "mean in float64": lambda y: y.mean(dtype=torch.float64),
    "mean of bfloat16": lambda y: y.bfloat16().mean(0),
    "mean of integers": lambda y: y.long().mean(),
    "variance": lambda y: (y.var(), y.std(0), y.var(0, correction=0), torch.var_mean(y, 0)),
    "deviation of bfloat16": lambda y: torch.std_mean(y.bfloat16(), 0, keepdim=True),
    "product": lambda y: (y.prod(), y.prod(0)),
    "extremes": lambda y: (y.amax(0), y.amin(), y.max(), y.min(0), y.max(0)),
    "indices of extremes": lambda y: (y.argmax(), y.argmin(0), y.argmax(1)),
    "extremes of integers": lambda y: ((y * 9).long().amax(0), (y * 9).int().min()),
    "any, all": lambda y: ((y > 1).any(), (y > -9).all(0), (y > 0).any(1), (y > 0).count_nonzero()),
    "logsumexp": lambda y: (y.logsumexp(0), y.logsumexp(1)),
    "norm": lambda y: (y.norm(), y.norm(dim=0), torch.linalg.vector_norm(y, torch.inf, 0)),
    "softmax": lambda y: (y.softmax(0), y.softmax(1), y.log_softmax(0)),
    "scan": lambda y: (y.cumsum(0), y.cumsum(1), y.cummax(0), y.cumprod(0)),
    "sort": lambda y: (y.sort(0), y.sort(0, descending=True), y.sort(1), y.argsort(dim=0, stable=True)),
    "topk": lambda y: (y.topk(2, 0), y.topk(2, 1, largest=False)),
    "topk of too few": lambda y: y[:, 0].topk(9),
    "product of matrices": lambda y: (y @ y.t() @ y, y.t() @ y, y @ y[:2].t(), y.t() @ y[:, 0]),
    "bmm": lambda y: (y[:, None] @ y[:, :, None], y[None].expand(2, -1, -1) @ y.t()[None].expand(2, -1, -1)),
    "transposed": lambda y: (y.t() * 2, y.t().contiguous(), y.t().sum(0)),
    "views": lambda y: (y[:, 1:3] + 1, y[:, 0] * 2, y[..., None] + 1, y.view(-1, 5, 1), y.reshape(-1)),
    "merged": lambda y: (y.view(-1).sum(), y.flatten().mean(), y.flatten() * 2),
    "some rows": lambda y: (y[0], y[-1], y[1:], y[:2], y[::2], y.flip(0), y.roll(1, 0)),
    "by indices": lambda y: (y[torch.tensor([0, -1, 1], device=y.device)], y[:, [2, 0, -1]]),
    "selected again": lambda y: (y[y > 0], y[y[:, 0] > 0], y[y[:, 0] > 99]),
    "nonzero again": lambda y: ((y > 0).nonzero(), torch.where(y.relu())),
    "gathered": lambda y: y.gather(1, y.argsort(1)),
    "joined": lambda y: (torch.cat([y, y * 2], 1), torch.cat([y, y]), torch.stack([y, y], 1)),
    "padded": lambda y: F.pad(y, (1, 1)),
    "normalized": lambda y: F.layer_norm(y, (5,)),
    "by a scalar": lambda y: (y + 1, 2 * y, y / 3, y**2, -y, y.clamp(0, 1), y > 0, y.to(torch.float16)),
    "with a row": lambda y: y + torch.arange(5.0, device=y.device),
    "with a column": lambda y: y + torch.ones(len(y), 1, device=y.device),
    "wrong sizes": lambda y: y + torch.ones(4, 5, device=y.device),
    "other wrong sizes": lambda y: y @ torch.ones(4, 5, device=y.device),
    "like it": lambda y: (torch.zeros_like(y), torch.ones_like(y) + y, torch.full_like(y, 3)),
    "in place": lambda y: y.add_(1).mul_(2).relu_().sum(0),
    "in place, a part": lambda y: (y[0].zero_(), y[:, 1].add_(5), y),
    "in place, by a mask": lambda y: y.masked_fill_(y > 0, 7),
    "wrong in place": lambda y: y.long().add_(1.5),
    "out": lambda y: torch.add(y, 1, out=torch.empty(0, device=y.device)),
    "copied": lambda y: (y.clone(), torch.empty_like(y).copy_(y), y.detach(), y.cpu().to(y.device)),
    "where": lambda y: torch.where(y > 0, y, -y),
    "items": lambda y: [*y.tolist(), y[0, 0].item(), len(y), str(y.cpu()), bool((y > 5).any())],
    "iterated": list,
    "losses": lambda y: [
        loss(y, torch.zeros_like(y), reduction=r)
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
        for r in ("none", "mean", "sum")
    ],
    "cross entropy": lambda y: [
        F.cross_entropy(y, (y[:, 0] > 0).long(), reduction=r) for r in ("none", "mean", "sum")
    ],
    "binary cross entropy": lambda y: (
        F.binary_cross_entropy(y.sigmoid(), (y > 0).float()),
        F.binary_cross_entropy_with_logits(y, (y > 0).float(), reduction="sum"),
    ),
    "unique again": lambda y: (y.round().unique(), y.round().long().unique(return_inverse=True)),
    "bincount": lambda y: (y.abs().long()[:, 0].bincount(), y[:, 0].long().abs().bincount(y[:, 1])),
    "repeated": lambda y: (y.repeat_interleave(2, 0), y.repeat_interleave(y[:, 0].abs().long(), 0)),
    "sum added": lambda y: torch.zeros(3, 5, device=y.device).index_add(0, (y[:, 0] > 0).long(), y),
    "scattered": lambda y: torch.zeros(3, device=y.device).scatter_add(0, (y[:, 0] > 0).long(), y[:, 1]),
    "complex": lambda y: torch.complex(y, y).conj().sum(0),
    "einsum": lambda y: torch.einsum("nk,nk->n", y, y),
    "median": lambda y: (y.median(0), y.quantile(0.5)),
}  # fmt: skip


@pytest.mark.parametrize(
    "mask",
    [
        "of rows",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("no row", "one row", "all rows")),
    ],
)
@pytest.mark.parametrize("chain", CHAINS)
def test_what_is_computed_from_selected_rows_is_as_on_cpu(chain: str, mask: str) -> None:
    masks = {
        "of rows": ROWS,
        "no row": ROWS & False,
        "one row": torch.tensor([False, False, True, False]),
        "all rows": ROWS | True,
    }

    assert_as_on_cpu(lambda t, m: CHAINS[chain](t[m]), x, masks[mask])


# A hundred counts.


def count_of(i: int) -> int:
    """A hundred different numbers from 0 to 99, not in order."""
    return i * 37 % TIMES


def mask_with(n: int, size: int = TIMES) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size, generator=seed)[:n]] = True
    return mask


values = torch.randn(TIMES, generator=seed)
LOOPS: dict[str, tuple[Callable[[int], tuple[Tensor, ...]], Compute]] = {
    "nonzero": (
        lambda n: (mask_with(n),),
        lambda m: m.nonzero().sum(),
    ),
    "mask": (
        lambda n: (values, mask_with(n)),
        lambda t, m: (t[m] * 2).sum(),
    ),
    "mask, read": (
        lambda n: (values, mask_with(n)),
        lambda t, m: t[m] * 2 + 1,
    ),
    "two masks, joined": (
        lambda n: (values.view(50, 2), mask_with(n // 2, 50), mask_with(49 - n // 3, 50)),
        lambda t, m, k: (
            torch.cat([t[m], t[k], t[:3]]).cumsum(0)[:3],
            torch.stack([t[m], t[m] * 2], 1).mean((0, 1)),
            F.pad(t[m], (1, 0)).view(-1).amax() if m.any() else t[0],
        ),
    ),
    "written by a mask": (
        lambda n: (values, mask_with(n)),
        lambda t, m: t.clone().index_put_((m,), t[m] * 2 + 1).cumsum(0),
    ),
    "masked_select": (
        lambda n: (values, mask_with(n)),
        lambda t, m: t.masked_select(m).exp().mean(),
    ),
    "unique": (
        lambda n: (torch.randint(0, n + 1, (TIMES,), generator=seed),),
        lambda t: [part.sum() for part in t.unique(return_inverse=True, return_counts=True)],
    ),
    "unique rows": (
        lambda n: (torch.randint(0, n // 10 + 3, (TIMES, 2), generator=seed),),
        lambda t: t.unique(dim=0).float().std(0),
    ),
    "repeat_interleave": (
        lambda n: (values[:5], torch.randint(0, n + 1, (5,), generator=seed)),
        lambda t, r: (t.repeat_interleave(r) * 2).sum(),
    ),
    "bincount": (
        lambda n: (torch.randint(0, n + 1, (TIMES,), generator=seed),),
        lambda t: (t.bincount() ** 2).sum(),
    ),
}  # fmt: skip


@pytest.mark.slow("rows")
@pytest.mark.parametrize("loop", LOOPS)
def test_hundred_counts_compile_a_handful_of_programs(loop: str, compiled: Count) -> None:
    inputs_of, compute = LOOPS[loop]
    counters.fallbacks.clear()

    for i in range(TIMES):
        inputs = inputs_of(count_of(i))
        expected, got = compute(*inputs), compute(*on_device(inputs))
        for ours, theirs in zip(flat(got), flat(expected), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True, rtol=1e-5, atol=1e-5)

    assert compiled() <= HANDFUL
    assert not counters.fallbacks


class Tagger(nn.Module):
    """Logits for each token of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.outer(F.gelu(self.inner(self.norm(self.embedding(tokens)))))


def cross_entropy(model: Tagger, tokens: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens)[mask], target[mask])


def selected_first(model: Tagger, tokens: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[mask]), target[mask])


def mean(model: Tagger, tokens: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return model(tokens)[mask].mean()


def squares(model: Tagger, tokens: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    y = model(tokens)[mask]
    return F.mse_loss(y.softmax(-1), F.one_hot(target, 5)[mask].float())


def selected_values(model: Tagger, tokens: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return (model(tokens).masked_select(mask[..., None]) ** 2).mean()


@pytest.mark.slow
@pytest.mark.parametrize("loss", [cross_entropy, selected_first, mean, squares, selected_values])
def test_training_on_a_hundred_masks_compiles_a_handful_of_programs(
    loss: Compute, compiled: Count
) -> None:
    torch.manual_seed(0)
    ours, theirs = Tagger().to("pjrt"), Tagger()
    theirs.load_state_dict(ours.state_dict())
    after = []

    for i in range(TIMES):
        tokens = torch.randint(0, 11, (10, 10), generator=seed)
        target = torch.randint(0, 5, (10, 10), generator=seed)
        mask = mask_with(1 + count_of(i) % (TIMES - 1)).view(10, 10)
        expected = loss(theirs, tokens, target, mask)
        got = loss(ours, *on_device((tokens, target, mask)))
        expected.backward()
        got.backward()
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert a.grad is not None
            torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)
        ours.zero_grad()
        theirs.zero_grad()
        after.append(compiled())

    assert after[-1] <= 2 * HANDFUL, after


@pytest.mark.slow
def test_large_tensors_have_a_few_sizes_of_room(compiled: Count) -> None:
    t = torch.randn(20_000, generator=seed)
    device = t.to("pjrt")

    for i in range(40):
        n = 1 + i * 467 % 20_000
        mask, other = mask_with(n, len(t)), mask_with(n, len(t))
        expected = (t[mask] * t[other]).sum() + t[mask].unique().amax()
        a, b = on_device((mask, other))
        got = (device[a] * device[b]).sum() + device[a].unique().amax()
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-3)

    assert compiled() <= 3 * HANDFUL
