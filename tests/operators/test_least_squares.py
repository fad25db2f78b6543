"""`torch.linalg.lstsq` gives residuals where the CPU does, by each of its drivers."""

from __future__ import annotations

import pytest
import torch

from sides import DEVICE

FULL = torch.arange(30.0).reshape(2, 5, 3).sin()
ONE_LOW = torch.cat([FULL[:1], torch.ones(1, 5, 3)])
RIGHT = torch.arange(20.0).reshape(2, 5, 2).cos()


@pytest.mark.parametrize("driver", ["gelsd", "gelss", "gelsy"])
@pytest.mark.parametrize("matrix", [FULL, ONE_LOW], ids=["full rank", "a low rank"])
def test_results_are_those_of_the_cpu(matrix: torch.Tensor, driver: str) -> None:
    ours = torch.linalg.lstsq(matrix.to(DEVICE), RIGHT.to(DEVICE), driver=driver)

    theirs = torch.linalg.lstsq(matrix, RIGHT, driver=driver)
    torch.testing.assert_close([x.cpu() for x in ours], list(theirs))


def test_residuals_given_as_out_are_emptied_where_a_rank_is_low() -> None:
    out = [torch.empty(0, device=DEVICE) for _ in range(4)]
    out[2] = out[2].long()

    torch.linalg.lstsq(ONE_LOW.to(DEVICE), RIGHT.to(DEVICE), driver="gelsd", out=out)

    assert [list(x.shape) for x in out] == [[2, 3, 2], [0], [2], [2, 3]]
