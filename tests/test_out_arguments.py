"""Each `out=` gets the result that is its own, resized as on CPU."""

from __future__ import annotations

import pytest
import torch

aten = torch.ops.aten


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("shape", [(0,), (4, 6), (2, 2)])
def test_a_kronecker_product_is_written_to_out(shape: tuple[int, ...]):
    x, y = torch.arange(4.0).reshape(2, 2), torch.ones(2, 3)
    out = torch.empty(shape, device="pjrt")
    assert torch.kron(x.to("pjrt"), y.to("pjrt"), out=out) is out
    assert out.tolist() == torch.kron(x, y).tolist()


def test_a_kronecker_product_is_not_cast_to_integers():
    x = torch.ones(2, 2, device="pjrt")
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.kron(x, x, out=torch.empty(4, 4, dtype=torch.int64, device="pjrt"))


def test_running_statistics_and_outs_each_get_their_own():
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", "pjrt"):
        mean, var = torch.zeros(4, device=device), torch.ones(4, device=device)
        outs = {n: torch.empty(0, device=device) for n in ("out", "save_mean", "save_invstd")}
        aten._native_batch_norm_legit.out(
            x.to(device), None, None, mean, var, True, 0.1, 1e-5, **outs
        )
        results.append([t.cpu() for t in (mean, var, *outs.values())])
    torch.testing.assert_close(results[1], results[0])
