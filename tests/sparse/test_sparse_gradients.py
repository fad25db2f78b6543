"""An embedding bag whose gradient would be sparse is refused, in words."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torch_pjrt.errors import UnsupportedError


def test_backward_of_a_sparse_embedding_bag_names_sparse():
    weight = torch.randn(6, 3, device="pjrt", requires_grad=True)
    indices = torch.tensor([1, 2, 4], device="pjrt")
    output = F.embedding_bag(indices, weight, indices[:1] - 1, mode="sum", sparse=True)

    with pytest.raises(UnsupportedError, match="sparse"):
        output.sum().backward()
