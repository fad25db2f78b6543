"""Two processes that share a mesh go on with the batches that one process alone would have had."""

from __future__ import annotations

import json
from pathlib import Path

import several
from interruptions import Numbers
from torch.utils.data import DataLoader

from torch_pjrt_fsdp import DataShard, GlobalBatchSampler, ResumableLoader

N = 60


def test_processes_on_a_mesh_go_on_with_the_batches_of_one(tmp_path: Path) -> None:
    sampler = GlobalBatchSampler(N, 8, seed=6, shard=DataShard())
    loader = ResumableLoader(DataLoader(Numbers(N), batch_sampler=sampler))
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(loader.state_dict()))
    rest = [batch.tolist() for batch in batches]

    script = Path(__file__).parent / "resumed_on_a_mesh.py"
    ended = several.run(str(script), 2, str(state), chips=4)

    assert [one.status for one in ended] == [0, 0], [one.err[-3000:] for one in ended]
    for rank, one in enumerate(ended):
        found = json.loads(one.out.splitlines()[-1])
        assert found["shard"] == rank
        assert found["by process"] == found["in each"] == rest
        assert found["loaded"] == 4 * len(rest)  # half of each batch
        assert found["refused"][0] == ""
        assert f"part {rank} of 2" in found["refused"][1] and "part 0 of 1" in found["refused"][1]
        assert found["stream"] == [list(range(i, i + 8)) for i in range(0, N - 7, 8)]
