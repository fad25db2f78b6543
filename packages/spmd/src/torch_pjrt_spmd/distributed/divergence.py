"""Whether ranks still hold the same: parameters, or a loss, compared bit by bit by a hash of each tensor.

Replicas of a model that were equal once stay so only as long as each makes the same steps: a seed that
depends on the rank, a rank that skips a batch, a broken chip or memory part them without an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from torch_pjrt_spmd.distributed.errors import PeerError
from torch_pjrt_spmd.distributed.group import group_of_ranks

Watched = torch.nn.Module | torch.Tensor | Mapping[str, torch.Tensor] | Iterable[torch.Tensor]

_ABSENT = "no such tensor"
# Words of a hash are multiplied by odd numbers that differ from place to place.
_STRIDE, _SECOND_STRIDE = 2, 0x9E3779B2


class Diverged(PeerError):
    """Tensors that should be equal on all ranks are not.

    tensor  the name of the first that differs.
    ranks   those that differ from most, or, where no value is held by most, from the first rank.
    """

    def __init__(self, happened: str, tensor: str, **more: Any) -> None:
        super().__init__(happened, **more)
        self.tensor = tensor


class DivergenceCheck:
    """Compares tensors across ranks at every so many calls.

        check = DivergenceCheck(model, every=100)
        for batch in loader:
            ...
            optimizer.step()
            check()

    of      a module (its parameters and buffers), a tensor, tensors by name, or several tensors; on each
            rank of the same shapes and dtypes.
    every   how many calls make a comparison. One reads the tensors once, on the device, and brings 16 bytes
            of each to the host: the step ends there.
    group   a process group of PyTorch's; not given, the default one.
    """

    def __init__(self, of: Watched, *, every: int = 1, group: Any = None) -> None:
        self._of, self._every, self._group = of, every, group
        self._calls = 0

    def __call__(self) -> None:
        """One more step is done. Raises `Diverged` where it is compared and ranks differ."""
        self._calls += 1
        if self._calls % self._every == 0:
            check_divergence(self._of, group=self._group, when=f"at call {self._calls}")


def check_divergence(of: Watched, *, group: Any = None, when: str = "") -> None:
    """Compare tensors across the ranks of a group, all of which must call this.

    of      as of `DivergenceCheck`.
    when    for the error.

    Raises `Diverged`, on each rank alike, with the ranks and the first tensor that differs; `PeerError`
    where a rank is gone or does not come.
    """
    found = group_of_ranks(group)
    named = _named(of)
    hashes = _hashes([x for _, x in named])
    mine = "\n".join(
        f"{h} {name} {x.dtype} {list(x.shape)}" for h, (name, x) in zip(hashes, named, strict=True)
    )
    said = [text.split("\n") for text in found.peers.exchange(mine)]
    for i in range(max(map(len, said))):
        here = [lines[i] if i < len(lines) else _ABSENT for lines in said]
        if len(set(here)) > 1:
            raise _diverged(found.peers.ranks, here, named, i, when)


def _diverged(
    ranks: tuple[int, ...], here: list[str], named: list[tuple[str, Any]], i: int, when: str
) -> Diverged:
    usual, n = Counter(here).most_common(1)[0]
    if 2 * n <= len(here):
        usual = here[0]
    apart = [rank for rank, text in zip(ranks, here, strict=True) if text != usual]
    name = next(text.split(" ")[1] for text in here if text != _ABSENT)
    lines = [f"rank {rank}: {text}" for rank, text in zip(ranks, here, strict=True)]
    names = " and ".join(map(str, apart))
    return Diverged(
        f"Rank {names} has diverged{f' {when}' if when else ''}: "
        f"`{name}` is the first tensor that differs, of {len(named)}.",
        name,
        ranks=apart,
        saw="\n    ".join(lines[:16]),
        expected="the same bits on each rank (a hash of each tensor is shown, with its dtype and shape)",
        hint="a seed, a branch or a batch that only this rank had; every=1 tells the step",
    )


def _named(of: Watched) -> list[tuple[str, torch.Tensor]]:
    if isinstance(of, torch.nn.Module):
        return [*of.named_parameters(), *of.named_buffers()]
    if isinstance(of, torch.Tensor):
        return [("tensor", of)]
    if isinstance(of, Mapping):
        return [(str(name), x) for name, x in of.items()]
    return [(f"tensor[{i}]", x) for i, x in enumerate(of)]


def _hashes(tensors: list[torch.Tensor]) -> list[str]:
    """Of each tensor's bits, in order; computed where they are, and read together."""
    with torch.no_grad():
        sums = [s for x in tensors for s in _sums(x.detach())]
        by_device: dict[torch.device, list[int]] = {}
        for i, s in enumerate(sums):
            by_device.setdefault(s.device, []).append(i)
        words = [0] * len(sums)
        for positions in by_device.values():
            together = torch.stack([sums[i] for i in positions]).tolist()
            for i, word in zip(positions, together, strict=True):
                words[i] = word & 0xFFFFFFFFFFFFFFFF
    return [f"{a:016x}{b:016x}" for a, b in zip(words[::2], words[1::2], strict=True)]


def _sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sums of the tensor's words, each word times a number of its own; integers wrap around."""
    bits = _bits(x).reshape(-1).to(torch.int64)
    position = torch.arange(bits.numel(), device=x.device, dtype=torch.int64)
    mixed = bits ^ (bits >> 7)
    return (bits * (position * _STRIDE + 1)).sum(), (mixed * (position * _SECOND_STRIDE + 1)).sum()


def _bits(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        x = torch.view_as_real(x)
    if x.dtype == torch.bool:
        return x.to(torch.int32)
    if not x.is_floating_point():
        return x
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(same_size[x.element_size()])
