"""XLA's options for programs that run once: compiled quickly rather than well.

Compiling takes most of the time of such runs. Without LLVM's optimizations and with XLA's simpler emitters it
takes a twentieth; but those take forever over some programs.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_OPTIONS: Mapping[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@cache
def quick_options() -> dict[str, bool | int]:
    """As options of a program: those that this jaxlib has. XLA refuses others."""
    import jaxlib

    library = Path(jaxlib.__file__).parent / "libjax_common.so"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        # The end is part of it: the name of an option that is gone may still be reserved, within other text.
        known = {name for name in _OPTIONS if text.find(f"\0{name}\0".encode()) >= 0}
    return {name: value for name, value in _OPTIONS.items() if name in known}


def quick_flags() -> str:
    """The same as XLA_FLAGS, where another one ends the process."""
    return " ".join(f"--{name}={str(value).lower()}" for name, value in quick_options().items())
