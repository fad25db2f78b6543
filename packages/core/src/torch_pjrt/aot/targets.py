"""Hardware that is not here, by names like `v5e:2x4`: the chips that programs can be compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_pjrt.errors import UnknownDevice
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.host import host
from torch_pjrt.session import session


class _Known:
    """The chips of targets by name. Kept: each answer of a compiler describes chips of its own."""

    def __init__(self) -> None:
        self.by_name: dict[str, tuple[Device, Sequence[Any]]] = {}


_known = session.own("chips of targets", _Known())


def targets() -> list[str]:
    """Names that `compile_for` takes, or examples of them, from all plugins that are installed.

    >>> "v5e:2x4" in torch_pjrt.targets()
    True
    """
    return [name for offer in host().all_offers() for name in offer.device.targets()]


def target_chips(target: str) -> Sequence[Any]:
    """The chips of a target, the same objects each time. Raises as `compile_for` does.

    >>> target_chips("h1000")
    Traceback (most recent call last):
    torch_pjrt.errors.UnknownDevice: No plugin compiles for `h1000`...
    """
    return described(target)[1]


def described(target: str) -> tuple[Device, Sequence[Any]]:
    """The device whose plugin knows the target, and the chips."""
    known = _known.by_name.get(target)
    if known is not None:
        return known
    for offer in host().all_offers():
        chips = offer.device.compile_only_chips(target)
        if chips is not None:
            found = _known.by_name[target] = offer.device, tuple(chips)
            return found
    raise UnknownDevice(
        f"No plugin compiles for `{target}`.",
        saw=f"targets {', '.join(targets()) or 'none'}",
        hint='pip install "torch-pjrt[tpu]" or "torch-pjrt-gpu[cuda13]", which need no such hardware for it',
    )
