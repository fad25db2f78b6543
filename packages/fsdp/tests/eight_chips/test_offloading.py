"""A model whose parts lie in the host's memory learns what it learns on one chip, and stays there."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from learner import BATCH, LENGTH, VOCABULARY, Block, Gpt, trained
from torch import nn
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, OffloadPolicy
from torch.utils._pytree import tree_map_only

import warm
from torch_pjrt import config
from torch_pjrt.errors import SettingError, UnsupportedError
from torch_pjrt_fsdp import (
    FullyShardedDataParallel,
    HostOffload,
    fully_shard,
    load_checkpoint,
    save_checkpoint,
    summon_full_params,
)
from torch_pjrt_spmd import Mesh, mark_sharding, memory_kinds, sharding_of

HOST = "pinned_host"
ALL = HostOffload()
STATE = HostOffload(parameters=False, gradients=False)


@pytest.fixture(autouse=True)
def no_model_is_left() -> None:
    """A model whose policy is for some of it alone is a part of all programs' keys until it is gone."""
    gc.collect()


def mesh_of(*shape: int) -> Mesh:
    return Mesh(shape, ("fsdp",) if len(shape) == 1 else ("replica", "fsdp"))


def by(policy: Any, **options: Any) -> Callable[[Any, Mesh], Any]:
    return lambda model, mesh: fully_shard(
        model, mesh=mesh, offload_policy=policy, **{"wrap": Block, **options}
    )


def wrapped(model: Any, mesh: Mesh) -> Any:
    return FullyShardedDataParallel(
        model, mesh=mesh, auto_wrap_policy={Block}, cpu_offload=CPUOffload(True)
    )


def tensor_parallel_too(model: Any, mesh: Mesh) -> Any:
    for block in model.blocks:
        mark_sharding(block.up.weight, mesh, ("replica", None))
        mark_sharding(block.down.weight, mesh, (None, "replica"))
    return fully_shard(model, mesh=mesh["fsdp"], wrap=Block, offload_policy=ALL)


@dataclass(frozen=True)
class Case:
    """lies: the memory that a parameter is to lie in, its gradient, and an optimizer's state of it."""

    shard: Callable[[Any, Mesh], Any]
    options: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (8,)
    lies: tuple[str | None, str | None, str | None] = (HOST, HOST, HOST)
    rolled: bool = False
    slow: bool = True


CASES = {
    "blocks":                Case(by(CPUOffloadPolicy()), slow=False),
    "the model alone":       Case(by(ALL, wrap=None)),
    "wrapper":               Case(wrapped),
    "hybrid":                Case(by(ALL), shape=(2, 4)),
    "with tensor parallel":  Case(tensor_parallel_too, {"device": "pjrt"}, (2, 4)),
    "the state alone":       Case(by(STATE), lies=(None, None, HOST)),
    "all but gradients":     Case(by(HostOffload(gradients=False)), lies=(HOST, None, HOST)),
    "kept for backward":     Case(by(ALL, reshard_after_forward=False)),
    "clipped":               Case(by(ALL), {"clip": 0.1}),
    "accumulated":           Case(by(ALL), {"accumulate": 2}),
    "checkpoints around":    Case(by(ALL), {"again": "around"}),
    "checkpoints inside":    Case(by(ALL), {"again": "inside"}),
    "tied weights":          Case(by(ALL), {"tied": True}),
    "on the device before":  Case(by(ALL), {"device": "pjrt"}),
    "compiled":              Case(by(ALL), {"how": "compiled"}),
    "compiled blocks":       Case(by(ALL), {"how": "compiled blocks"}),
    "captured":              Case(by(ALL), {"how": "captured"}),
    "rolled":                Case(by(ALL), {"n_layers": 4}, rolled=True),
    "rolled, checkpoints":   Case(by(ALL), {"n_layers": 4, "again": "around"}, rolled=True),
    "rolled, the state":     Case(by(STATE), {"n_layers": 4}, lies=(None, None, HOST), rolled=True),
}  # fmt: skip
ROWS = [
    pytest.param(name, marks=pytest.mark.slow("rows")) if case.slow else name
    for name, case in CASES.items()
]


@cache
def on_one_chip(options: Any) -> list[float]:
    return trained(None, **dict(options))[0]


def kind_of(tensor: Any) -> str | None:
    found = sharding_of(tensor)
    assert found is not None
    return found.memory_kind


@pytest.mark.parametrize("name", ROWS)
def test_losses_are_those_of_one_chip(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    alike = {k: v for k, v in case.options.items() if k not in ("device", "how", "again")}
    expected = on_one_chip(tuple(alike.items()))
    monkeypatch.setattr(config, "roll_layers", "on" if case.rolled else "off")
    mesh = mesh_of(*case.shape)

    losses, model, optimizer, programs = trained(lambda m: case.shard(m, mesh), **case.options)

    assert losses == pytest.approx(expected, rel=1e-5)
    is_captured = case.options.get("how") == "captured"
    assert programs <= 2 + is_captured  # the optimizer's state, a step, and a captured step
    for p in model.parameters():
        states = [s for s in optimizer.state[p].values() if s.shape == p.shape]
        found = (kind_of(p), kind_of(p.grad), *map(kind_of, states))
        if is_captured:  # its gradients are the recording's own
            found = (found[0], case.lies[1], *found[2:])
        assert found == (*case.lies, case.lies[2])


def test_the_chips_hold_nothing_of_what_lies_in_the_hosts_memory() -> None:
    model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(4)])
    before = torch.pjrt.memory_allocated(0)  # type: ignore[attr-defined]

    fully_shard(model, mesh=mesh_of(8), offload_policy=ALL)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(8, 256, device="pjrt")).sum().backward()
    optimizer.step()
    torch.pjrt.synchronize()  # type: ignore[attr-defined]

    [n_bytes] = {p.nbytes // 8 for p in model.parameters()}
    assert torch.pjrt.memory_allocated(0) - before < n_bytes  # type: ignore[attr-defined]
    assert [kind_of(p.grad) for p in model.parameters()] == [HOST] * 4


DAILY = [("onto the host", "a checkpoint")]


def stepped(policy: Any) -> tuple[Any, torch.optim.Optimizer]:
    _, model, optimizer, _ = trained(lambda m: by(policy)(m, mesh_of(8)), n_steps=2)
    return model, optimizer


def loss_after(model: Any, optimizer: torch.optim.Optimizer) -> float:
    text = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) % VOCABULARY
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(text).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
    return loss.item()  # pyright: ignore[reportPossiblyUnboundVariable]


@pytest.mark.parametrize(
    ("way", "saved", "loaded"),
    [
        pytest.param(way, *policies, id=f"{name}-{way}", marks=() if daily else pytest.mark.slow)
        for name, policies in {
            "to the host": (ALL, ALL),
            "from the host": (ALL, None),
            "onto the host": (None, ALL),
            "the state alone": (STATE, ALL),
        }.items()
        for way in ("state dicts", "a checkpoint")
        for daily in [(name, way) in DAILY]
    ],
)
def test_states_go_on_in_either_memory(way: str, saved: Any, loaded: Any, tmp_path: Path) -> None:
    model, optimizer = stepped(saved)
    other = by(loaded)(Gpt(), mesh_of(8))
    its = torch.optim.AdamW(other.parameters(), lr=1e-2)
    if way == "a checkpoint":
        save_checkpoint({"model": model, "optimizer": optimizer}, tmp_path / "step-1")
        load_checkpoint({"model": other, "optimizer": its}, tmp_path / "step-1")
    else:
        other.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
        # PyTorch keeps the very tensors that are given, `step` among them.
        copied = tree_map_only(torch.Tensor, lambda t: t.cpu().clone(), optimizer.state_dict())
        its.load_state_dict(copied)

    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    assert loss_after(other, its) == pytest.approx(loss_after(model, optimizer), rel=1e-6)
    wanted = HOST if loaded is ALL else None
    for p in other.parameters():
        assert kind_of(p) == wanted
        assert {kind_of(s) for s in its.state[p].values() if s.shape == p.shape} == {wanted}


def test_parameters_are_summoned_to_the_chips_and_go_back() -> None:
    model = by(ALL)(Gpt(), mesh_of(8))
    weight = model.blocks[0].up.weight
    expected = weight.cpu() + 1

    with summon_full_params(model), torch.no_grad():
        whole = sharding_of(weight)
        weight.add_(1)

    assert whole is not None
    assert (whole.spec, whole.memory_kind) == ((None, None), None)
    assert kind_of(weight) == HOST
    assert torch.equal(weight.cpu(), expected)


def test_a_model_made_on_meta_goes_to_the_hosts_memory() -> None:
    with torch.device("meta"):
        model = Gpt()
    by(ALL)(model, mesh_of(8))
    model.to_empty(device="pjrt")
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)

    assert {kind_of(p) for p in model.parameters()} == {HOST}
    assert all(bool((p.cpu() == 0.5).all()) for p in model.parameters())


def test_pytorchs_policy_that_offloads_nothing_is_accepted() -> None:
    for policy in (OffloadPolicy(), CPUOffload(False), HostOffload(False, False, False)):
        model = fully_shard(nn.Linear(8, 8), mesh=mesh_of(8), offload_policy=policy)
        assert kind_of(model.weight) is None


def test_what_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="no policy of offloading"):
        fully_shard(nn.Linear(8, 8), mesh=mesh_of(8), offload_policy="cpu")
    with pytest.raises(UnsupportedError, match="on one chip"):
        fully_shard(nn.Linear(8, 8), mesh=mesh_of(1), offload_policy=ALL)
    monkeypatch.setattr(memory_kinds, "memory_kinds", lambda mesh: ("device",))
    with pytest.raises(UnsupportedError, match="memory of the kind 'pinned_host'"):
        fully_shard(nn.Linear(8, 8), mesh=mesh_of(8), offload_policy=CPUOffloadPolicy())


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from learner import Block, trained
from torch_pjrt.extend import counters
from torch_pjrt_fsdp import HostOffload, fully_shard
from torch_pjrt_spmd import Mesh, sharding_of

mesh, policy = Mesh((8,), ("fsdp",)), HostOffload() if sys.argv[2] == "host" else None
losses, model, *_ = trained(
    lambda m: fully_shard(m, mesh=mesh, wrap=Block, offload_policy=policy), n_steps=3
)
kind = sharding_of(model.blocks[0].up.weight).memory_kind
print(losses[-1], kind, counters.programs_compiled, counters.programs_loaded, dict(counters.not_kept))
"""


@pytest.mark.slow
def test_second_process_loads_its_programs_unless_the_memory_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", str(tmp_path))

    def run(where: str) -> list[str]:
        done = warm.run(["-c", PROGRAM, str(Path(__file__).parent), where], os.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first = run("host")
    loss, kind, compiled, loaded, lost = first
    assert (kind, loaded, lost) == (HOST, "0", "{}")
    assert run("host") == [loss, HOST, "0", compiled, "{}"]
    assert run("chips")[1:3] == ["None", compiled]
