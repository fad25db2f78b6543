"""What is said before a plan is made is kept, or refused by name: specs, and what is computed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt_spmd import Plan, auto_shard
from torch_pjrt_spmd.autoshard.none_fits import NoPlan
from torch_pjrt_spmd.spec import ShardingError

MESH = {"data": 2, "model": 4, "one": 1}
X = torch.empty(64, 128, device="meta")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def model() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(Layer(), Layer(), Layer())


def planned(plan: Any = None, **options: Any) -> Plan:
    options = {"mesh": MESH, "optimizer": torch.optim.AdamW, "seconds": 3, **options}
    return auto_shard(model(), X, options.pop("mesh"), chip="v5e", plan=plan, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    planned().save(path)
    return json.loads(path.read_text())


def edited(saved: dict[str, Any], path: Path, **changes: Any) -> Path:
    whole = {**saved, **changes}
    path.write_text(json.dumps({k: v for k, v in whole.items() if v is not ...}))
    return path


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ({"0.up.wieght": ("model", None)}, r"called `0\.up\.wieght`"),
        ({"3.up.weight": ("model", None)}, r"called `3\.up\.weight`"),
        ({"argument 1": ("data",)}, "called `argument 1`"),
        ({"0.up.weight": ("x", None)}, r"`0\.up\.weight`.* no axis 'x'"),
        ({"0.up.weight": ("model", "model")}, "'model' is used twice"),
        ({"0.up.weight": (("data", "data"), None)}, "'data' is used twice"),
        ({"0.up.weight": ("data", None, None)}, "3 entries, the tensor 2 dims"),
        ({"0.up.weight": "model"}, "not a text"),
        ({"0.up.weight": 5}, "that is no spec"),
        ({"0.up.weight": (0, None)}, "that is no spec"),
        ({"0.up.weight": (("model", "data"), None)}, "cannot lie as it is said"),
        ({"0.up.weight": ("model",), "1.up.weight": ("data",)}, r"`0\.up\.weight` and `1\.up"),
        ({"0.up": ("x", None)}, r"`0\.up`.* no axis 'x'"),
        ({"0.up": ("model", "model")}, "used twice"),
        ({"0.up": ("data", None), "1.up": (None, None)}, r"`0\.up` and `1\.up`"),
        ({"0.up.weight/exp_agv": ("model", None)}, "exp_agv"),
        ({"": ("model", None)}, "called ``"),
    ],
)  # fmt: skip
def test_spec_that_means_nothing_is_refused(specs: Any, says: str) -> None:
    with pytest.raises(ShardingError, match=says):
        planned(specs)


@pytest.mark.parametrize("across", [("slices",), ("data", "slices"), "data"])
def test_axis_over_slices_that_the_mesh_has_not_is_refused(across: Any) -> None:
    with pytest.raises(ShardingError, match="could go over slices"):
        planned(across=across)


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("0.up", ("data", None)),
        ("1.up", (None, ("data", "model"))),
        ("2.down", ("model", "data")),
        ("2", (None, None)),
        ("Sequential", ("data", "model")),
        ("0.up.weight", (("data", "model"), None)),
        ("1.down.weight/exp_avg", (None, "model")),
        ("argument 0", ("model",)),
        ("0.up.bias", ("one",)),
    ],
)
def test_what_is_said_is_in_the_plan(name: str, spec: tuple[Any, ...]) -> None:
    plan = planned({name: spec})

    whole = tuple(None if e == "one" else e for e in spec)
    shape = next(p.shape for p in (*plan.placements, *plan.activations) if name in p.names)
    assert plan.spec(name) == (*whole, *[None] * (len(shape) - len(spec)))
    assert any(p.fixed for p in (*plan.placements, *plan.activations) if name in p.names)


def test_plan_that_is_loaded_is_the_one_that_was_saved(saved: Any, tmp_path: Path) -> None:
    plan = planned(edited(saved, tmp_path / "plan.json"))

    assert plan.seconds == pytest.approx(saved["estimated"]["seconds"], rel=1e-3)
    for part, of in (("placements", plan.placements), ("activations", plan.activations)):
        assert saved[part]
        lies = {n: p.spec for p in of if p.role != "argument" for n in p.names}
        assert {n: _plain(spec) for n, spec in saved[part].items()} == lies


def _plain(spec: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(e) if isinstance(e, list) else e for e in spec)


def test_activation_that_is_edited_lies_so(saved: Any, tmp_path: Path) -> None:
    now = _plain(saved["activations"]["0.up"])
    wanted = ["model", None] if now != ("model", None) else ["data", None]
    activations = {n: wanted if n.endswith(".up") else s for n, s in saved["activations"].items()}

    plan = planned(edited(saved, tmp_path / "plan.json", activations=activations))

    assert plan.spec("1.up") == tuple(wanted) != now
    assert plan.seconds >= saved["estimated"]["seconds"]


@pytest.mark.parametrize("again", [True, False])
def test_what_is_computed_again_is_what_the_file_says(
    again: bool, saved: Any, tmp_path: Path
) -> None:
    layers = ["0", "1", "2"] if again else []
    path = edited(saved, tmp_path / "plan.json", rematerialized=layers, activations=...)

    assert planned(path).rematerialized == tuple(layers)


def test_layers_that_must_keep_all_are_not_computed_again_to_fit(
    saved: Any, tmp_path: Path
) -> None:
    roomy = planned()
    path = edited(saved, tmp_path / "plan.json", rematerialized=[], activations=..., placements=...)

    with pytest.raises(NoPlan):
        planned(path, memory_per_device=roomy.memory.peak // 4)


def test_sizes_of_axes_may_be_others(saved: Any, tmp_path: Path) -> None:
    path = edited(saved, tmp_path / "plan.json")
    plan = planned(path, mesh={**MESH, "data": 4})

    assert plan.mesh["data"] == 4
    assert plan.spec("0.up.weight") == _plain(saved["placements"]["0.up.weight"])


def test_plan_for_training_may_be_that_of_the_forward_pass_alone(
    saved: Any, tmp_path: Path
) -> None:
    plan = planned(edited(saved, tmp_path / "plan.json", rematerialized=...), optimizer=None)

    assert plan.spec("0.up.weight") == _plain(saved["placements"]["0.up.weight"])


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": ...}, "no `format`"),
        ({"format": 1}, "another version"),
        ({"mesh": ...}, "`mesh` is None"),
        ({"mesh": {"data": 2}}, "other axes"),
        ({"placements": [1]}, r"`placements` is \[1\]"),
        ({"placements": {"0.up.wieght": []}}, "wieght"),
        ({"placements": {"0.up.weight": ["model", None, 3]}}, "no spec|3 entries"),
        ({"activations": {"0.upp": []}}, "called `0.upp`"),
        ({"activations": {"0.up": [None, 1]}}, "no spec"),
        ({"rematerialized": ["0"]}, r"all of \['0', '1', '2'\]"),
        ({"rematerialized": ["0", "1", "2", "3"]}, r"all of \['0', '1', '2'\]"),
        ({"rematerialized": "0"}, "not a list"),
        ({"placement": {}}, "`placement`, which is none of"),
    ],
)
def test_file_that_says_what_cannot_be_is_refused(
    changes: dict[str, Any], says: str, saved: Any, tmp_path: Path
) -> None:
    with pytest.raises(ShardingError, match=says):
        planned(edited(saved, tmp_path / "plan.json", **changes))


@pytest.mark.parametrize("content", [None, "", "[1]", "no JSON", "\x00"])
def test_file_that_is_no_plan_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_text(content)

    with pytest.raises(ShardingError, match=r"plan\.json"):
        planned(tmp_path / "plan.json")
