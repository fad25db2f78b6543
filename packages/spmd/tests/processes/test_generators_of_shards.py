"""Random operators on DTensors take a generator of the CPU, as on one device."""

from __future__ import annotations

import json

from several import run


def test_random_operators_on_dtensors_take_a_cpu_generator():
    for one in run("generators_of_shards.py", 2):
        assert one.status == 0, one.err
        said = [json.loads(line) for line in one.out.splitlines() if line.startswith("{")]
        assert len(said) == 7, one.out
        for case in said:
            name = case.pop("case")
            assert all(case.values()), (name, case)
