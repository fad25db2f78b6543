"""Views, and what needs symbolic sizes, compute what PyTorch does, for sizes that are new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from torch_pjrt.errors import LoweringError
from torch_pjrt.plugin import aten
from torch_pjrt_quant import export
from torch_pjrt_quant.exporting import interpreter
from torch_pjrt_quant.exporting.load import load

F = torch.nn.functional

# Of a tensor of n rows and 6 columns.
VIEWS: list[Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = [
    lambda x: x.view(-1, 2, 3),
    lambda x: x.reshape(-1, 2),
    lambda x: x.flatten(),
    lambda x: x.unsqueeze(1).squeeze(1).unsqueeze(-1),
    lambda x: x.expand(2, -1, -1),
    lambda x: x.mT @ x,
    lambda x: x[1:],
    lambda x: x[:-1, ::2],
    lambda x: x[-2:, 1],
    lambda x: x[:, [0, -1, 2]],
    lambda x: x[torch.arange(x.shape[0]) // 2],
    lambda x: x.split([1, 5], 1),
    lambda x: x.chunk(3, 1),
    lambda x: x.unbind(1),
    lambda x: x.select(0, -1),
    lambda x: x.narrow(0, 1, 2),
    lambda x: x.diagonal(),
    lambda x: x.movedim(0, 1),
    lambda x: x.unfold(1, 3, 2),
    lambda x: x.repeat(2, 3),
    lambda x: x.repeat_interleave(2, 1),
    lambda x: x.view(torch.int32),
    lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 3, 2)).conj().resolve_conj()),
    lambda x: x.as_strided((2, 3), (3, 1), 1),
]


def put(x: Tensor, key: Any, value: Tensor) -> Tensor:
    x = x.clone()
    x[key] = value
    return x


# Of a tensor of 4 rows and 6 columns: where elements lie in memory is known.
MEMORY: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.t().as_strided((2, 3), (6, 2), 1),
    lambda x: (x + 1)[1:3, 2:].as_strided((3, 2), (6, 1)),
    lambda x: (x + 1)[1:3, 2:].as_strided((2, 2), (1, 6), 0),
    lambda x: x[:, ::2].as_strided((2, 2), (1, 1), 3),
    lambda x: x.as_strided((2, 2, 2), (0, 6, 1), 7),
    lambda x: x[2].as_strided((0, 2), (2, 1)),
    lambda x: x.unsqueeze(0).expand(2, 4, 6).as_strided((4,), (6,), 5),
]
# With masks, of which values or other indices say how many places they name, or nothing does.
MASKED: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.index_put((x > 0,), torch.tensor(7.0)),
    lambda x: x.index_put((x > 0,), torch.ones(6), accumulate=True),
    lambda x: x.index_put((ROWS,), torch.arange(12.0).view(2, 6)),
    lambda x: x.index_put((ROWS,), torch.arange(6.0)),
    lambda x: x.index_put((ROWS, torch.tensor([4, 1])), torch.tensor([8.0, 9.0])),
    lambda x: x.index_put((ROWS, torch.tensor([4])), torch.tensor(9.0), accumulate=True),
    lambda x: x.index_put((ROWS, COLUMNS), torch.tensor([8.0, 9.0])),
    lambda x: put(x, (slice(None), COLUMNS), torch.tensor([8.0, 9.0])),
    lambda x: put(x, (slice(1, 3), COLUMNS), torch.tensor([[8.0], [9.0]])),
    lambda x: x.view(2, 2, 6).index_put((ROWS.view(2, 2), torch.tensor(3)), torch.tensor(8.0)),
    lambda x: put(
        x.view(2, 2, 6), (ROWS[:2], slice(None), torch.tensor([1, 2])), torch.ones(2, 1) * 8
    ),
]
ROWS = torch.tensor([True, False, False, True])
COLUMNS = torch.tensor([False, True, False, False, True, False])
SIZES: list[Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = [
    lambda x: torch.arange(x.shape[0]) + x.shape[0],
    lambda x: torch.arange(2, x.shape[0] * 3, 2),
    lambda x: x / x.shape[0] + x.numel(),
    lambda x: x.new_zeros(x.shape[0], 2) + torch.ones(x.shape[0], 1),
    lambda x: torch.full((x.shape[0],), 3) + torch.eye(x.shape[0])[0],
    lambda x: x.masked_fill(x > 0, 7.0),
    lambda x: torch.where(x > 0, x, 0),
    lambda x: x.sort(0, descending=True),
    lambda x: x.sort(1),
    lambda x: x.tril(),
    lambda x: x.cumsum(0),
    lambda x: x.softmax(0).log_softmax(1),
    lambda x: x.mean(0) + x.var(0),
    lambda x: x.index_copy(0, torch.tensor([1]), torch.ones(1, 6)),
    lambda x: x.index_add(1, torch.tensor([1, 1]), torch.ones(x.shape[0], 2)),
    lambda x: x.index_put((torch.tensor([0]), torch.tensor([1])), torch.ones(1)),
    lambda x: x.scatter(1, torch.zeros(x.shape[0], 1, dtype=torch.int64), 9.0),
    lambda x: x.gather(1, torch.ones(x.shape[0], 2, dtype=torch.int64)),
    lambda x: torch.cat([x, x[:1]]),
    lambda x: torch.stack([x, -x], 1),
    lambda x: x.argmax(1) + x.argmin(0).sum(),
    lambda x: x.topk(2),
    lambda x: x.roll(1, 0).flip(1),
    lambda x: F.pad(x, (1, 2), value=3.0),
    lambda x: F.layer_norm(x, (6,)) + F.gelu(x) + F.silu(x),
    lambda x: F.interpolate(x[:, None, :, None].expand(-1, 2, -1, 4), scale_factor=2),
    lambda x: F.adaptive_avg_pool1d(x[:, None], 2) + F.max_pool1d(x[:, None], 3),
    lambda x: F.one_hot((x[:, 0] > 0).long(), 2),
    lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.int64)),
    lambda x: torch.einsum("nc,mc->nm", x, x),
    lambda x: torch.einsum("nc,nd->cd", x, x).triu(1),
    lambda x: torch.linalg.vector_norm(x, dim=1) + x.norm(),
    lambda x: (x[:, :3] % 2).clamp(0.1, 0.9).pow(2),
]


def _exported_and_run(tmp_path, compute, tensors: list[Tensor]) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
            return compute(x)

    module = Module()
    example, *others = tensors
    made = export(module, (example,), dynamic_shapes=({0: Dim("n", min=4, max=100)},))
    model = load(made.save(tmp_path))

    for x in (example, *others):
        wanted = module(x)
        got = model(x.numpy())
        pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
        for there, here in pairs:
            assert there.dtype == here.resolve_conj().numpy().dtype
            np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-6)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_views(tmp_path, number):
    _exported_and_run(tmp_path, VIEWS[number], [torch.randn(n, 6) for n in (6, 9, 12)])


@pytest.mark.slow("rows")
@pytest.mark.parametrize("number", range(len(SIZES)))
def test_operators_on_sizes_that_vary(tmp_path, number):
    _exported_and_run(tmp_path, SIZES[number], [torch.randn(n, 6) for n in (5, 4, 7)])


@pytest.mark.slow("rows")
@pytest.mark.parametrize("compute", [*MEMORY, *MASKED])
def test_places_in_memory_and_where_masks_are_true(tmp_path, compute):
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return compute(x)

    # Six numbers are above zero, in other places each time.
    one, other = (torch.randperm(24).view(4, 6) - 17.0 for _ in range(2))
    model = load(export(Module(), (one,)).save(tmp_path))

    for x in (one, other):
        np.testing.assert_array_equal(model(x.numpy()), compute(x))


# Square matrices, in which PyTorch's graphs have a check with an effect; and rules without a decomposition.
OTHERS: list[Callable[[Tensor], Any]] = [
    lambda x: torch.linalg.solve(x, x[0]),
    lambda x: torch.linalg.inv(x) + torch.linalg.cholesky(x @ x.mT),
    torch.linalg.lu_factor,
    lambda x: F.bilinear(x, x + 1, torch.stack([x, x.mT, x * 2]), torch.arange(3.0)),
    lambda x: x.clone().resize_(2, 3),
    lambda x: F.embedding_bag(torch.tensor([0, 2, 1]), x, torch.tensor([0, 1]), mode="max"),
]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_checks_go_and_other_rules_compute_what_pytorch_does(tmp_path, number):
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return OTHERS[number](x)

    x = torch.randn(4, 4) + 4 * torch.eye(4)
    got = load(export(Module(), (x,)).save(tmp_path))(x.numpy())

    for there, here in zip(tree_leaves(got), tree_leaves(OTHERS[number](x)), strict=True):
        assert there.dtype == here.numpy().dtype
        np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-5)


def test_what_one_platform_lacks_is_said_with_what_to_do(tmp_path):
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.eigvals(x)

    with pytest.raises(LoweringError, match="platforms=") as raised:
        export(Module(), (torch.eye(3),))
    assert "tpu" in str(raised.value)
    model = load(export(Module(), (torch.eye(3),), platforms=["cpu"]).save(tmp_path))

    np.testing.assert_allclose(model(2 * np.eye(3, dtype=np.float32)), [2, 2, 2])


def test_memory_beside_a_view_is_refused():
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.as_strided((2,), (1,), 0)

    with pytest.raises(LoweringError, match="memory beside `x`"):
        export(Module(), (torch.ones(6)[2:],))


# Windows of `x` (2, n) as long as `y` (2, m) is, where nothing says which is longer but PyTorch's own checks.
WINDOWS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x[:, -y.shape[1] :] + y,
    lambda x, y: x[:, : y.shape[1]] + y,
    lambda x, y: x[:, y.shape[1] :],
    lambda x, y: x[:, : -y.shape[1]],
    lambda x, y: x.narrow(1, 1, y.shape[1]) + y,
    lambda x, y: x.select(1, y.shape[1]),
    lambda x, y: x.split([y.shape[1], x.shape[1] - y.shape[1]], 1)[1],
    lambda x, y: put(x, (slice(None), slice(0, y.shape[1])), y),
    lambda x, y: put(x, (slice(None), slice(-y.shape[1], None)), y),
    lambda x, y: torch.cat([x, y], 1)[:, -x.shape[1] :],
]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_windows_whose_sizes_vary(tmp_path, number):
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return WINDOWS[number](x, y)

    dims = {1: Dim("n", min=9, max=64)}, {1: Dim("m", min=2, max=8)}
    made = export(Module(), (torch.randn(2, 12), torch.randn(2, 4)), dynamic_shapes=dims)
    model = load(made.save(tmp_path))

    for sizes in ((12, 4), (9, 8), (40, 2)):
        x, y = (torch.randn(2, size) for size in sizes)
        np.testing.assert_allclose(model(x.numpy(), y.numpy()), Module()(x, y), rtol=1e-6)


def test_sizes_that_cannot_be_compared_are_an_error_with_what_to_do(monkeypatch):
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin()

    rule = {aten.sin.default: lambda out, x: x if x.shape[0] > 5 else -x}
    monkeypatch.setattr(interpreter, "RULES", {**interpreter.RULES, **rule})

    with pytest.raises(LoweringError, match="inconclusive") as raised:
        export(Module(), (torch.ones(9),), dynamic_shapes=({0: Dim("n")},))
    assert "say more of the sizes" in str(raised.value) and "test_rules.py" in str(raised.value)
