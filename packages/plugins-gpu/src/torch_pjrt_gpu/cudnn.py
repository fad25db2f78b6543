"""What JAX's attention asks of the card and of cuDNN, answered for the card that the program is for.

JAX asks its own GPU client, and starts it to do so: it would take three quarters of the card's memory, beside
the client that is at work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt.plugin import client

# What programs for cards that are not here are made for: the first one with all that we ask for.
_ASSUMED = 91200


def answer_for_the_card_at_work() -> None:
    """Have those three functions of JAX look at our client first; does nothing the second time."""
    asked = _module()
    if hasattr(asked.check_cudnn_version, "before"):
        return
    asked.check_compute_capability = _comparing(
        asked.check_compute_capability, lambda ours, asked_for: ours >= asked_for
    )
    asked.is_cuda_compute_capability_equal = _comparing(
        asked.is_cuda_compute_capability_equal, lambda ours, asked_for: ours == asked_for
    )
    before = asked.check_cudnn_version

    def check_cudnn_version() -> int:
        return before() if client().is_here else _ASSUMED

    check_cudnn_version.before = before  # type: ignore[attr-defined]
    asked.check_cudnn_version = check_cudnn_version


def capability() -> tuple[int, ...] | None:
    """That of the card which is compiled for; None where it says nothing of itself."""
    said = getattr(client().chip, "compute_capability", None)
    return None if said is None else _numbers(said)


def version() -> int | None:
    """The version of cuDNN that programs call, 91200 for 9.12.0; None where there is none."""
    answer_for_the_card_at_work()
    try:
        return _module().check_cudnn_version()
    except RuntimeError:
        return None


def _module() -> Any:
    from jax._src.cudnn import fused_attention_stablehlo

    return fused_attention_stablehlo


def _comparing(
    before: Callable[[str], bool], compare: Callable[[tuple[int, ...], tuple[int, ...]], bool]
) -> Callable[[str], bool]:
    def answer(asked_for: str) -> bool:
        ours = capability()
        if ours is None:
            return before(asked_for)
        return compare(ours, _numbers(asked_for))

    return answer


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(int(n) for n in capability.split("."))
