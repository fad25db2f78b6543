"""The ways to generate text: one function each, which is given the sizes and the cache's room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from text_sizes import Sizes


class Generator(Protocol):
    """What a way gives: the tokens after a prompt, one call each. A new prompt starts anew."""

    def first(self, prompt: torch.Tensor) -> Any: ...
    def next(self) -> Any: ...
    def read(self, tokens: list[Any]) -> list[int]: ...
    def programs_run(self) -> int: ...
    def programs_compiled(self) -> int: ...


@dataclass(frozen=True)
class Way:
    """One way: its name in tables, and what makes it.

    launches   the calling thread launches programs; false where it computes as well.
    settings   environment variables of its process.
    """

    title: str
    make: Callable[[Sizes, int], Generator]
    launches: bool = True
    settings: dict[str, str] = field(default_factory=dict)


def by_jax(sizes: Sizes, room: int) -> Generator:
    from text_jax import JaxGenerator
    from text_torch import model_of

    return JaxGenerator(sizes, model_of(sizes).state_dict(), room)


def by_torch(sizes: Sizes, room: int, *, device: str, backend: str = "") -> Generator:
    """As it is, or prefill and decode compiled."""
    from text_torch import TorchGenerator, as_it_is, model_of

    wrap = partial(torch.compile, backend=backend, dynamic=False) if backend else as_it_is
    return TorchGenerator(model_of(sizes), device, room, prefill=wrap, decode=wrap)


def by_capture(sizes: Sizes, room: int) -> Generator:
    """Decode captured; prefill, which reads values, as it is."""
    import torch_pjrt
    from text_torch import TorchGenerator, model_of

    return TorchGenerator(model_of(sizes), "pjrt", room, decode=torch_pjrt.capture)


_ANEW = {"TORCH_PJRT_CACHE_DIR": ""}
WAYS = {
    "eager": Way("PyTorch, eager CPU", partial(by_torch, device="cpu"), launches=False),
    "inductor": Way(
        "PyTorch, torch.compile",
        partial(by_torch, device="cpu", backend="inductor"),
        launches=False,
        settings={"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
    ),
    "jax": Way("JAX, hand-written", by_jax),
    "pjrt": Way('PyTorch, "pjrt"', partial(by_torch, device="pjrt"), settings=_ANEW),
    "compiled": Way(
        'PyTorch, "pjrt", compiled',
        partial(by_torch, device="pjrt", backend="pjrt"),
        settings=_ANEW,
    ),
    "captured": Way('PyTorch, "pjrt", decode captured', by_capture, settings=_ANEW),
}
