"""A pass or a rule with other options makes other programs; no process loads those of another option."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixture_types import Run
from written_plugins import with_plugin

pytestmark = pytest.mark.slow

PLUGIN = """
import os, threading
from dataclasses import dataclass
from typing import Any
from torch_pjrt.plugin import Device, LoweringTable, Stage, aten, impl, rewritten

@dataclass(frozen=True)
class Scale:
    factor: float

@dataclass(frozen=True)
class ScaleRelus:
    by: Any
    name: str = "scale-relus"
    stage: Stage = Stage.REWRITE

    def __call__(self, graph):
        factor = self.by.factor if isinstance(self.by, Scale) else 7.0

        def rewrite(node, build):
            if node.op != aten.relu.default:
                return None
            return build(aten.mul.Tensor, build.args[0], factor)

        return rewritten(graph, rewrite)

def powers(n):
    def rule(x):
        return x ** n
    return rule

@impl
def torch_pjrt_passes(device: Device):
    return [ScaleRelus(eval(os.environ["OPTION"]))]

@impl
def torch_pjrt_lowerings(device: Device):
    table = LoweringTable("powers")
    table.add(aten.sinc.default, powers(int(os.environ["POWER"])))
    return table
"""

CALL = """
import json, torch, torch_pjrt
x = torch.full((2,), 3.0, device="pjrt")
values = [torch.relu(x).tolist(), torch.sinc(x).tolist()]
counts = torch_pjrt.report().as_dict()
print(json.dumps([values, counts["programs_loaded"], counts["not_kept"]]))
"""


@pytest.fixture
def called(python: Run, tmp_path: Path) -> Callable[..., Any]:
    variables = with_plugin(tmp_path, "scales", PLUGIN)
    variables["TORCH_PJRT_CACHE_DIR"] = str(tmp_path / "programs")

    def run(option: str, power: int = 2) -> Any:
        variables.update(OPTION=option, POWER=str(power))
        return json.loads(python(CALL, **variables).stdout)

    return run


def test_a_process_loads_only_programs_of_the_same_options(called: Any):
    assert called("Scale(2.0)") == [[[6, 6], [9, 9]], 0, {}]
    assert called("Scale(5.0)", power=3) == [[[15, 15], [27, 27]], 0, {}]
    assert called("Scale(2.0)") == [[[6, 6], [9, 9]], 2, {}]


def test_an_option_that_nobody_can_tell_leaves_programs_out_of_the_cache(called: Any):
    reason = "pass `scale-relus`: its option `by` is a lock that is no frozen dataclass"
    assert called("threading.Lock()") == [[[21, 21], [9, 9]], 0, {reason: 2}]
