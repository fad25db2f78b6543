"""What errors between processes say, and that they are not lost."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torch_pjrt_spmd.distributed import divergence, same_host, work
from torch_pjrt_spmd.distributed import peers as peers_module
from torch_pjrt_spmd.distributed.errors import PeerError
from torch_pjrt_spmd.distributed.health import Health
from torch_pjrt_spmd.distributed.peers import Peers
from torch_pjrt_spmd.distributed.store_keeper import KEEPER, keeper


@pytest.mark.parametrize("short", [0, 1])
def test_a_rank_that_has_fewer_tensors_is_told_by_the_name_that_it_lacks(
    short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told:
        ranks = (0, 1)

        def exchange(self, mine: str) -> list[str]:
            said = [mine, mine]
            said[short] = mine.partition("\n")[0]
            return said

    found: Any = type("Group", (), {"peers": Told()})
    monkeypatch.setattr(divergence, "group_of_ranks", lambda group: found)

    with pytest.raises(divergence.Diverged, match="`w` is the first tensor that differs") as caught:
        divergence.check_divergence({"v": torch.ones(2), "w": torch.ones(3)})

    assert caught.value.tensor == "w"
    assert f"rank {short}: no such tensor" in str(caught.value)


def test_work_that_has_failed_fails_again_for_who_waits_again() -> None:
    def finish() -> int:
        raise PeerError("Rank 1 is gone.")

    ours = work._Pending([torch.ones(2)], finish)  # pyright: ignore[reportPrivateUsage]

    for _ in range(2):
        with pytest.raises(PeerError, match="Rank 1 is gone"):
            ours.wait()
    assert ours.is_completed()
    assert not ours.is_success()
    assert isinstance(ours.exception(), PeerError)
    with pytest.raises(PeerError):
        ours.result()


def test_who_keeps_the_store_is_who_the_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert keeper(store) == "rank 0"
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert keeper(store) == "torchrun's agent on the first host"
    monkeypatch.setenv(KEEPER, "the process that called launch")
    assert keeper(store) == "the process that called launch"


def beside_rank_0() -> tuple[Health, Peers]:
    """Rank 1 of two, after rank 0 has posted; both are this process, and the store is gone."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own, other = Health(store, 1, 2, 5.0), Health(store, 0, 2, 5.0)
    other.put(other.now())
    own.board.look([0])
    own.store_fault = "Connection reset by peer"
    return own, Peers(store, (0, 1), 1, 5.0)


def test_a_rank_that_is_still_being_killed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, False, False])
    monkeypatch.setattr(same_host, "is_dead", lambda pid, began: next(looks, True))
    own, peers = beside_rank_0()
    monkeypatch.setattr(peers_module, "health", lambda: own)

    error = peers.lost("all_reduce SUM", RuntimeError("Connection closed by peer"))

    assert str(error).startswith(
        f"Rank 0 ({own.now().host}, process {os.getpid()}) is gone: killed"
    )
    assert error.ranks == (0,)


def test_without_the_store_who_keeps_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own, peers = beside_rank_0()
    monkeypatch.setattr(peers_module, "health", lambda: own)

    error = peers.lost("all_reduce SUM", RuntimeError("Timed out"))

    assert str(error).startswith(
        "The run's store is gone, with the process that keeps it: rank 0 ("
    )
    assert error.ranks == (0,)
