"""Views, and what needs symbolic sizes, compute what PyTorch does, for sizes that are new."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim

from torch_pjrt_quant import export
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
