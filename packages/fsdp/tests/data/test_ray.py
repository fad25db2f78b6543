"""Rows of a dataset of Ray's come in one order, from any position on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from torch_pjrt_fsdp import DataShard, GlobalStream, RayRows, ResumableLoader

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'torch-pjrt-fsdp[ray]'")
pytest.importorskip("ray.data", reason="needs Ray Data: pip install 'torch-pjrt-fsdp[ray]'")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of many kinds
]


@pytest.fixture(scope="module")
def rows() -> Iterator[Any]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        yield ray.data.range(60, override_num_blocks=6).map(lambda row: {"x": row["id"] * 3})
    finally:
        ray.shutdown()


def test_rows_come_in_order_and_go_on(rows: Any) -> None:
    def loader() -> ResumableLoader:
        stream = GlobalStream(RayRows(rows), 6, shuffle=10, shard=DataShard())
        return ResumableLoader(DataLoader(stream, batch_size=None))

    one, other = loader(), loader()
    batches = iter(one)
    seen = [next(batches)["x"].tolist() for _ in range(4)]
    other.load_state_dict(one.state_dict())
    rest = [batch["x"].tolist() for batch in other]
    whole = [batch["x"].tolist() for batch in loader()]

    assert seen + rest == whole
    assert sorted(x for batch in whole for x in batch) == [i * 3 for i in range(60)]
