"""The chips of TPU topologies that are not here: libtpu compiles for them on any Linux machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_pjrt.errors import DeviceError
from torch_pjrt.plugin import compile_only_chips
from torch_pjrt_tpu import probe

if TYPE_CHECKING:
    import jax

EXAMPLES = ("v4:2x2x1", "v5e:2x4", "v5p:2x2x1", "v6e:2x4")
# Two cores of a chip are one device with all of its memory, as on machines that have them.
_OPTIONS = {"v4": {"chip_config_name": "megacore"}}
_TARGET = re.compile(r"(v\d+[a-z]*|tpu7x):\d+(x\d+){1,2}")


def chips_of(target: str) -> Sequence[jax.Device] | None:  # pyright: ignore[reportInvalidTypeForm]
    """The chips of `v5e:2x4`; None for a name of another kind. `DeviceError` without libtpu."""
    if not _TARGET.fullmatch(target):
        return None
    if not probe.libtpu():
        raise DeviceError(
            f"Compiling for `{target}` takes libtpu.", hint='pip install "torch-pjrt-tpu[libtpu]"'
        )
    if not probe.chips():
        # libtpu asks Google's metadata server what machine it is on, for half a minute each time.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        # Several processes may compile at once: there are no chips that only one of them could have.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    try:
        return compile_only_chips("tpu", target, **_OPTIONS.get(target.partition(":")[0], {}))
    except Exception as error:
        if "lockfile" in str(error):
            raise DeviceError(
                "Another process uses libtpu, which takes one at a time.",
                saw=str(error).strip().partition("\n")[0],
                hint="wait until it has ended, or set ALLOW_MULTIPLE_LIBTPU_LOAD=1 in both",
            ) from error
        raise DeviceError(
            f"libtpu knows no topology `{target}`.",
            saw=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            expected=f"one like {', '.join(EXAMPLES)}",
        ) from error
